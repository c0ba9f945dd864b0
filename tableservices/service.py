"""What every table service is to those who run it: a name and one round of work."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from tableservices.cleaning.execute import LastClean, clean
from tableservices.cleaning.settings import CleaningSettings
from timeline.context import TableContext
from timeline.model.instant_time import InstantTime

__all__ = ["CleaningService", "ServiceResult", "TableService"]


class ServiceResult(Protocol):
    """What one round did."""

    @property
    def requested_time(self) -> InstantTime:
        """The instant it made."""

    @property
    def completion_time(self) -> InstantTime | None:
        """When that became visible; None of a plan that somebody else carries out."""

    @property
    def text(self) -> str:
        """One line for people."""


class TableService(Protocol):
    """One service over one table at a time; keeps nothing between rounds that safety needs."""

    @property
    def name(self) -> str:
        """As in ``hoodoo services``: ``clean``."""

    @property
    def inline(self) -> bool:
        """Whether a writer runs it after its own commit."""

    @property
    def beside(self) -> bool:
        """Whether a writer runs it on a thread beside its writes."""

    def run_once(self, context: TableContext) -> ServiceResult | None:
        """One round; None when there was nothing to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningService:
    """Cleaning as a service."""

    settings: CleaningSettings
    name: str = "clean"
    memory: LastClean = field(default_factory=LastClean)

    @property
    def inline(self) -> bool:
        """``hoodie.clean.automatic`` and not ``hoodie.clean.async``."""
        return self.settings.inline

    @property
    def beside(self) -> bool:
        """``hoodie.clean.automatic`` and ``hoodie.clean.async``."""
        return self.settings.beside

    def run_once(self, context: TableContext) -> ServiceResult | None:
        """Clean once; errors as ``clean``."""
        return clean(context, self.settings, memory=self.memory)
