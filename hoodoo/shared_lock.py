"""Whether the lock of a writer is one that writers of other engines take, where there are some."""

from __future__ import annotations

from lockproviders.registry import ProviderRegistry
from timeline.errors import StorageCapabilityError
from timeline.ports.lock import Lock
from timeline.properties.setting_names import ForeignWriters
from timeline.properties.settings import WriteSettings

__all__ = ["refuse_unshared_lock"]


def refuse_unshared_lock(settings: WriteSettings, lock: Lock, registry: ProviderRegistry) -> None:
    """
    Pass when nobody else is expected, or the lock excludes Java Hudi (FOR-1).

    Raises:
        StorageCapabilityError: Writers of other engines, who know nothing but the lock, would
            not be excluded.
    """
    if settings.foreign_writers is not ForeignWriters.EXPECTED:
        return
    provider = lock.provider
    if not registry.find(provider).capabilities.excludes_java:
        shared = [entry.name for entry in registry.entries if entry.capabilities.excludes_java]
        raise StorageCapabilityError(
            "writers of other engines are expected (hoodoo.foreign.writers), and the lock "
            f"provider {provider!r} does not exclude them; take turns with them, or use one that "
            f"Java Hudi shares: {', '.join(shared)}",
            kind="lock_not_shared",
            missing="excludes_java",
            provider=provider,
        )
