"""Archiving as a service, for writers and workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from tableservices.archiving.execute import ArchiveBackoff, archive
from tableservices.archiving.settings import ArchiveRules
from tableservices.service import ServiceResult
from timeline.context import TableContext

__all__ = ["ArchivingService"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivingService:
    """Archiving as a service."""

    rules: ArchiveRules
    beside_others: bool = False  # one of many writers that archive after commits, as of ``archive``
    name: str = "archive"
    memory: ArchiveBackoff = field(default_factory=ArchiveBackoff)

    @classmethod
    def from_properties(cls, properties: Mapping[str, str], *, beside_others: bool = False) -> Self:
        """Read the properties; errors as ``ArchiveRules.from_properties``."""
        rules = ArchiveRules.from_properties(properties)
        return cls(rules=rules, beside_others=beside_others)

    @property
    def inline(self) -> bool:
        """Return ``hoodie.archive.automatic`` and not ``hoodie.archive.async``."""
        return self.rules.archiving.inline

    @property
    def beside(self) -> bool:
        """Return ``hoodie.archive.automatic`` and ``hoodie.archive.async``."""
        return self.rules.archiving.beside

    def run_once(self, context: TableContext) -> ServiceResult | None:
        """Archive once; errors as ``archive``."""
        return archive(context, self.rules, memory=self.memory, beside_others=self.beside_others)
