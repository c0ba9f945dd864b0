"""Catalog sync as a service: after each commit of a writer, and in the rounds of a worker."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from hoodoo.sync.settings import SyncSettings
from hoodoo.sync.sync import NEXT_STEP, SyncResult, open_catalog, sync_table
from timeline.context import TableContext
from timeline.errors import HoodooError, UnavailableError

_PAUSE_MAX_MS: Final = 600_000


@dataclass
class SilentCatalogs:
    """
    Catalogs that did not answer, by their addresses, for all tables of this process.

    The first commit waits for its catalog in vain. Commits in a pause after it do not ask. The next
    one asks again, and the pause doubles with each failure, up to ten minutes.
    """

    _until_ms: dict[tuple[object, ...], tuple[int, int]] = field(default_factory=dict)
    _guard: Lock = field(default_factory=Lock)

    def left_ms(self, settings: SyncSettings, now_ms: int) -> int:
        """Return how long no commit asks the catalog; 0 if the next one does."""
        with self._guard:
            _, until_ms = self._until_ms.get(_address(settings), (0, now_ms))
        return max(0, until_ms - now_ms)

    def add(self, settings: SyncSettings, now_ms: int) -> None:
        """Begin a pause."""
        with self._guard:
            failures, _ = self._until_ms.get(_address(settings), (0, 0))
            longest = max(_PAUSE_MAX_MS, settings.pause_ms)
            pause_ms = min(settings.pause_ms << min(failures, 20), longest)
            self._until_ms[_address(settings)] = failures + 1, now_ms + pause_ms

    def forget(self, settings: SyncSettings) -> None:
        """End the pause, because the catalog answers."""
        with self._guard:
            self._until_ms.pop(_address(settings), None)


SILENT: Final = SilentCatalogs()


def _address(settings: SyncSettings) -> tuple[object, ...]:
    uris = settings.uris
    return (*settings.tools, *uris, settings.glue_region, settings.glue_endpoint)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogSyncService:
    """
    Syncs a table with its catalogs.

    In Hudi a failed sync fails the job after its commit, so a user may write the rows again. Here
    the write returns its result, and a warning gives the cause and the next step.
    """

    settings: SyncSettings
    name: str = "sync"

    @property
    def runs_inline(self) -> bool:
        """Return whether an option switches the sync on."""
        return self.settings.is_on

    @property
    def runs_in_background(self) -> bool:
        """Return False: Hudi has no key for it."""
        return False

    def run_once(self, context: TableContext) -> SyncResult | None:
        """Sync if an option switches it on; None if no entry changed. Errors: as ``sync_table``."""
        if not self.settings.is_on:
            return None
        clock = context.ports.clock
        left_ms = SILENT.left_ms(self.settings, clock.monotonic_ms())
        try:
            if left_ms:
                raise UnavailableError(
                    "the catalog did not answer before, and this commit did not ask it; a commit "
                    f"asks again in {-(-left_ms // 1000)} s"
                )
            result = sync_table(context, self.settings)
        except HoodooError as error:
            if isinstance(error, UnavailableError) and not left_ms:
                SILENT.add(self.settings, clock.monotonic_ms())
            context.ports.events.emit("sync.failed", why=error.message)
            if self.settings.ignore_exceptions:
                return None
            text = f"{error.message}; {NEXT_STEP}"
            raise type(error)(text, kind=error.kind, **error.fields) from error
        SILENT.forget(self.settings)
        return result if result and any(one.is_any for one in result.entries) else None


def refuse_unready_sync(settings: SyncSettings) -> None:
    """
    Refuse a write whose sync could never succeed, before it begins. Outside: nothing.

    Raises:
        MissingExtraError: The packages of a catalog are not installed.
    """
    for tool in settings.tools if settings.is_on else ():
        with closing(open_catalog(settings, tool)):
            pass
