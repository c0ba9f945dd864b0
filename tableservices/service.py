"""The interface of all table services, and cleaning as a service."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from tableservices.cleaning.execute import LastClean, clean
from tableservices.cleaning.settings import CleaningSettings
from timeline.context import TableContext
from timeline.model.instant_time import InstantTime

__all__ = ["CleaningService", "ServiceResult", "TableService"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningService:
    """Cleaning as a service."""

    settings: CleaningSettings
    name: str = "clean"
    memory: LastClean = field(default_factory=LastClean)

    @property
    def inline(self) -> bool:
        """Return whether ``hoodie.clean.automatic`` is set and ``hoodie.clean.async`` is not."""
        return self.settings.inline

    @property
    def beside(self) -> bool:
        """Return whether ``hoodie.clean.automatic`` and ``hoodie.clean.async`` are set."""
        return self.settings.beside

    def run_once(self, context: TableContext) -> ServiceResult | None:
        """Clean once; errors as ``clean``."""
        return clean(context, self.settings, memory=self.memory)
