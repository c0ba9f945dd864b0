"""Catalog sync as a service: after each commit of a writer, and in the rounds of a worker."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from hoodoo.sync.settings import SyncSettings
from hoodoo.sync.sync import NEXT_STEP, SyncResult, open_catalog, sync_table
from timeline.context import TableContext
from timeline.errors import HoodooError


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
        try:
            result = sync_table(context, self.settings)
        except HoodooError as error:
            context.ports.events.emit("sync.failed", why=error.message)
            if self.settings.ignore_exceptions:
                return None
            text = f"{error.message}; {NEXT_STEP}"
            raise type(error)(text, kind=error.kind, **error.fields) from error
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
