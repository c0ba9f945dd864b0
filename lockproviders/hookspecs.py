"""
The hook that a lock provider plug-in implements, and the values that it returns.

pluggy discovers, typed objects act (rule 6 of ARCHITECTURE.md): a plug-in returns frozen
``LockProviderEntry`` values, and all later calls go to a ``LockClient``. A plug-in is a module or
object with::

    from hoodoo.plugins import LockProviderEntry, hookimpl

    @hookimpl
    def lock_provider_entries():
        return [LockProviderEntry(name="mine", ...)]

Its distribution names it under the entry-point group ``hoodoo.plugins``. It is loaded only if the
caller allows that distribution by name (SEC4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import pluggy

from lockproviders.client import LockClient
from timeline.ports.ports import Clock, Ids
from timeline.properties.options import Option

PROJECT_NAME = "hoodoo"
ENTRY_POINT_GROUP = "hoodoo.plugins"

hookspec = pluggy.HookspecMarker(PROJECT_NAME)
hookimpl = pluggy.HookimplMarker(PROJECT_NAME)


@dataclass(frozen=True, slots=True, kw_only=True)
class LockCapabilities:
    """The promises of a provider; each True makes the matching tests of the suite mandatory."""

    between_processes: bool
    between_hosts: bool
    excludes_java: bool  # Java's provider of the same name takes the same lock
    expires: bool  # a dead holder's lock ends by time, not by the death itself
    fencing_tokens: bool


#: Of a server that Java's provider of the same name uses, too.
SERVER_SHARED_WITH_JAVA = LockCapabilities(
    between_processes=True,
    between_hosts=True,
    excludes_java=True,
    expires=True,
    fencing_tokens=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LockContext:
    """Everything from which a factory may build its client."""

    properties: Mapping[str, str]
    table_identity: str  # canonical; equal for all writers of one table
    table_address: str  # as the caller spelled it; Java's implicit providers hash exactly that
    table_folder: str | None  # absolute local folder of the table, None if it is elsewhere
    clock: Clock
    ids: Ids


@dataclass(frozen=True, slots=True, kw_only=True)
class LockProviderEntry:
    """One provider: its name, its promises and the factory of its client."""

    name: str
    factory: Callable[[LockContext], LockClient]
    capabilities: LockCapabilities
    jvm_class_names: tuple[str, ...] = ()  # fixed table, never an import (SEC4)
    options: tuple[Option, ...] = ()
    poll_first_ms: int = 2  # remote providers ask for slower polling (SEC17)
    poll_max_ms: int = 250


@hookspec
def lock_provider_entries() -> Iterable[LockProviderEntry]:  # type: ignore[empty-body]
    """Return the providers that this plug-in offers."""
