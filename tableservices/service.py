"""The interface of all table services."""

from __future__ import annotations

from typing import Protocol

from timeline.context import TableContext
from timeline.model.instant_time import InstantTime

__all__ = ["ServiceResult", "TableService"]


class ServiceResult(Protocol):
    """The result of one round of a service."""

    @property
    def requested_time(self) -> InstantTime:
        """The requested time of the instant that the round made."""

    @property
    def completion_time(self) -> InstantTime | None:
        """Its completion time; None for a plan that another executor will execute."""

    @property
    def text(self) -> str:
        """One line for people."""


class TableService(Protocol):
    """A table service; runs on one table at a time and keeps no state that safety needs."""

    @property
    def name(self) -> str:
        """The name in ``hoodoo services``, such as ``clean``."""

    @property
    def inline(self) -> bool:
        """Whether a writer runs it after its own commit."""

    @property
    def beside(self) -> bool:
        """Whether a writer runs it on a background thread."""

    def run_once(self, context: TableContext) -> ServiceResult | None:
        """Run one round; return None when there was nothing to do."""
