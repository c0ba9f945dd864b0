"""
What a table can go back to: savepoints, rollback, restore, and writes that ended unknown.

Half of ``hoodoo.table.Table``, apart because none of it reads or writes rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

from tableservices.archiving.execute import archive
from tableservices.archiving.settings import ArchiveRules
from tableservices.restoring.restore import RestoreReceipt, finish_restore, restore
from tableservices.restoring.rollback import RollbackReceipt, rollback
from tableservices.restoring.savepoints import (
    Savepoint,
    delete_savepoint,
    is_left_behind,
    savepoint,
    savepoints,
)
from timeline.model.moments import Moment
from timeline.model.times import InstantTime
from timeline.properties.options import PropertySet
from timeline.table import Table as CoreTable
from timeline.undoing.resolving import Resolution, resolve

__all__ = ["GoingBack"]


class GoingBack(ABC):
    """A table, as far as it can be taken back."""

    _core: CoreTable

    @property
    @abstractmethod
    def properties(self) -> PropertySet:
        """Every effective property with its layer."""

    @abstractmethod
    def join_writers(self) -> None:
        """Enter the registry of those who change the table."""

    def savepoint(self, instant: Moment | None = None, *, comments: str = "") -> Savepoint:
        """
        Keep the state as of a write, whatever cleaning would delete.

        Args:
            instant: The write's requested time, in any form of a moment (``as_of``); None for
                the newest completed one.
            comments: Text for people.

        Raises:
            InstantNotFoundError: No such write, or files of that state were cleaned.
            InvalidInputError: It has a savepoint already.
        """
        self.join_writers()
        chosen = None if instant is None else self._named(instant)
        return savepoint(self._core.context, chosen, comments=comments)

    @property
    def savepoints(self) -> list[Savepoint]:
        """The states that are kept."""
        return savepoints(self._core.context)

    def delete_savepoint(self, instant: Moment) -> None:
        """
        Give a kept state up.

        Where later writes were archived (``hoodie.archive.beyond.savepoint``) the saved one is
        archived before.

        Raises:
            InstantNotFoundError: There is no such savepoint.
            InvalidInputError: It cannot be archived yet, because something still needs it.
        """
        self.join_writers()
        context = self._core.context
        saved = self._named(instant)
        if is_left_behind(context, context.active(), saved):
            rules = ArchiveRules.from_properties(self.properties)
            archive(context, replace(rules, released=frozenset({saved})))
        delete_savepoint(context, saved)

    def rollback(self, instant: Moment, *, force: bool = False) -> RollbackReceipt:
        """
        Undo one write for good: a pending one, or the newest completed one.

        Args:
            instant: Its requested time, in any form of a moment (``as_of``).
            force: Also while the writer of a pending one gives signs of life.

        Raises:
            InstantNotFoundError: No such write, or the state before it was cleaned.
            InvalidInputError: Its writer is alive, a savepoint holds it, or it is needed.
        """
        self.join_writers()
        return rollback(self._core.context, self._named(instant), force=force)

    def restore(self, instant: Moment, *, force: bool = False) -> RestoreReceipt | None:
        """
        Take everything after a write away: the table reads as when that write completed.

        Args:
            instant: Its requested time in any form of a moment (``as_of``), of a savepoint or
                any write that is not cleaned.
            force: Also while writers of what goes give signs of life.

        Returns:
            None when nothing came after it.

        Raises:
            InstantNotFoundError: No such write, or files of that state were cleaned.
            InvalidInputError: A later savepoint holds what would go, or a writer is alive.
        """
        self.join_writers()
        return restore(self._core.context, self._named(instant), force=force)

    def finish_restore(self) -> RestoreReceipt | None:
        """
        Carry out the restore that another engine, which has ended, planned and left.

        Returns:
            None when there is none.
        """
        self.join_writers()
        return finish_restore(self._core.context)

    def resolve(self, instant: Moment) -> Resolution:
        """Decide whether a write counts that ended unknown: ``timeline.undoing.resolving.resolve``."""
        self.join_writers()
        return resolve(self._core.context, self._named(instant))

    def _named(self, instant: Moment) -> InstantTime:
        return self._core.context.instant_named(instant)
