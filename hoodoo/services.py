"""Table services of one opened table, as the front door offers them: ``table.services``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tableservices.cleaning.execute import CleanReceipt, clean
from tableservices.cleaning.settings import CleaningSettings
from tableservices.inline import InlineOutcome, run_inline
from tableservices.service import CleaningService, TableService
from timeline.active import ActiveTimeline
from timeline.context import TableContext
from timeline.undo import RolledBack, rollback_dead_writers

__all__ = ["Services", "services_of"]


def services_of(properties: Mapping[str, str]) -> tuple[TableService, ...]:
    """
    Every service of this release, configured.

    Raises:
        SettingError: A service's property is wrong.
    """
    return (CleaningService(settings=CleaningSettings.from_properties(properties)),)


class Services:
    """
    Upkeep of one table.

    Args:
        context: The table.
        properties: Effective properties; each service reads its own keys.
        join_writers: Enters the registry of those who change the table, once.

    Raises:
        SettingError: A service's property is wrong.
    """

    def __init__(
        self,
        context: TableContext,
        properties: Mapping[str, str],
        join_writers: Callable[[], None],
    ) -> None:
        self._context = context
        self._join_writers = join_writers
        self._properties = properties
        self._after_commit = services_of(properties)

    def clean(self) -> CleanReceipt | None:
        """
        Roll back dead writers, then delete what retention no longer keeps.

        Returns:
            The receipt, or None when there was nothing to delete.

        Raises:
            SettingError: A cleaning property is wrong.
            WriterDisagreementError: A live writer is configured differently.
            LockTimeoutError, StorageUnavailableError, OutcomeUnknownError: Something outside
                did not answer.
        """
        self._join_writers()
        return clean(self._context, CleaningSettings.from_properties(self._properties))

    def rollback_dead_writers(self, timeline: ActiveTimeline | None = None) -> list[RolledBack]:
        """
        Roll back every pending write whose heartbeat ran out. Errors: as ``clean``.

        Args:
            timeline: The timeline of a moment ago, where the caller has one.
        """
        self._join_writers()
        return rollback_dead_writers(self._context, timeline)

    def after_commit(self) -> InlineOutcome:
        """What a writer runs after its own commit (``hoodie.clean.automatic``); never fails."""
        return run_inline(self._context, self._after_commit)
