"""
Settings of archiving, read from ``hoodie.archive.*`` and ``hoodie.keep.*`` keys.

Defaults are those of Hudi 1.2.0. Commits that cleaning retains remain on the active timeline,
because the cleaner needs them. Settings that contradict this are refused before anything moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

from pydantic import Field

from tableservices.cleaning.settings import CleaningPolicy, CleaningSettings
from tableservices.compaction.settings import CompactionSettings
from timeline.errors import SettingError
from timeline.model.instant_time import InstantTime
from timeline.properties.option_settings import OptionSettings
from timeline.properties.options import Option, OptionKind, as_property_set

__all__ = ["ARCHIVING_OPTIONS", "ArchiveRules", "ArchivingSettings", "archiving_settings"]

_BOOL, _INT, _MS = OptionKind.BOOL, OptionKind.INT, OptionKind.MS

# By the field of ArchivingSettings that it sets.
ARCHIVING_OPTIONS: Mapping[str, Option] = {
    "automatic": Option(
        key="hoodie.archive.automatic",
        default="true",
        kind=_BOOL,
        doc="Archive after a commit, once there are more commits than are kept.",
    ),
    "asynchronous": Option(
        key="hoodie.archive.async",
        default="false",
        kind=_BOOL,
        doc="Archive on a thread beside the writes instead of after a commit.",
    ),
    "commits_kept_min": Option(
        key="hoodie.keep.min.commits",
        default="20",
        kind=_INT,
        doc="How many commits stay on the active timeline after archiving.",
    ),
    "commits_kept_max": Option(
        key="hoodie.keep.max.commits",
        default="30",
        kind=_INT,
        doc="Archiving begins when the active timeline has more commits than this.",
    ),
    "beyond_savepoint": Option(
        key="hoodie.archive.beyond.savepoint",
        default="false",
        kind=_BOOL,
        doc="Archive commits behind the first savepoint too, without those that are saved. "
        "Java Hudi (1.2.0) then shows no row that lies only in what was archived above a saved one, "
        "and nobody can restore to that savepoint. "
        "`hoodoo savepoint delete` archives a saved one that stayed behind first; another engine's "
        "deletion hides the archived rows above it until the next archive.",
    ),
    "not_past_clean": Option(
        key="hoodie.archive.block.on.latest.clean.ectr",
        default="false",
        kind=_BOOL,
        doc="Keep everything since the earliest commit that the last clean retained.",
    ),
    "merged_files": Option(
        key="hoodie.timeline.compaction.batch.size",
        default="10",
        kind=_INT,
        doc="So many files of one level of the history are merged into one of the next.",
    ),
    "merged_bytes_max": Option(
        key="hoodie.timeline.compaction.target.file.max.bytes",
        default="1048576000",
        kind=_INT,
        doc="Files of the history are merged up to this size together, bytes.",
    ),
    "batches_kept_ms": Option(
        key="hoodoo.batch.retention.ms",
        default="604800000",
        kind=_MS,
        doc="How long a batch id is remembered, from the completion of its commit; as long as that "
        "is on the active timeline in any case. A repeat that comes later is written again. Ids are "
        "one space for a table: two sources must not use the same ones.",
        since="0.1",
    ),
    "batches_together": Option(
        key="hoodoo.batch.boundary.ids",
        default="512",
        kind=_INT,
        doc="So many batch ids are repeated by each archiving; the others stay in earlier files.",
        since="0.1",
    ),
}

_Count = Annotated[int, Field(ge=2, le=1_000_000_000)]


class ArchivingSettings(OptionSettings):
    """All settings of archiving; the fields of ``ARCHIVING_OPTIONS``."""

    options: ClassVar[Mapping[str, Option]] = ARCHIVING_OPTIONS

    automatic: bool = True
    asynchronous: bool = False
    commits_kept_min: _Count = 20
    commits_kept_max: _Count = 30
    beyond_savepoint: bool = False
    not_past_clean: bool = False
    merged_files: _Count = 10
    merged_bytes_max: Annotated[int, Field(ge=1, le=2**40)] = 1_048_576_000
    batches_kept_ms: Annotated[int, Field(ge=0, le=2**53)] = 604_800_000
    batches_together: Annotated[int, Field(ge=1, le=1_000_000)] = 512

    @property
    def inline(self) -> bool:
        """Return whether a writer archives after its own commit."""
        return self.automatic and not self.asynchronous

    @property
    def beside(self) -> bool:
        """Return whether a writer archives on a background thread."""
        return self.automatic and self.asynchronous


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveRules:
    """The rules of an archive: its own settings, and those of services that need instants."""

    archiving: ArchivingSettings
    cleaning: CleaningSettings
    compaction: CompactionSettings
    released: frozenset[InstantTime] = frozenset()  # saved writes that need not be kept any more

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """
        Read the rules from all properties.

        Raises:
            SettingError: As ``archiving_settings``, or another service's property is wrong.
        """
        return cls(
            archiving=archiving_settings(properties),
            cleaning=CleaningSettings.from_properties(properties),
            compaction=CompactionSettings.from_properties(properties),
        )


def archiving_settings(properties: Mapping[str, str]) -> ArchivingSettings:
    """
    Read the archiving settings from all properties.

    If the properties do not set how many commits are kept, and cleaning retains more than Hudi's
    default, more are kept.

    Raises:
        SettingError: A value is wrong, or the two numbers of commits contradict each other or the
            retention of cleaning.
    """
    settings = ArchivingSettings.from_properties(properties)
    cleaning = CleaningSettings.from_properties(properties)
    said = as_property_set(properties)
    retained = cleaning.commits_retained if cleaning.policy is CleaningPolicy.COMMITS else 0
    keys = [ARCHIVING_OPTIONS[one].key for one in ("commits_kept_min", "commits_kept_max")]
    if settings.commits_kept_min <= retained and not any(said.get(key) for key in keys):
        more = retained + 10 - settings.commits_kept_min
        return settings.model_copy(
            update={
                "commits_kept_min": settings.commits_kept_min + more,
                "commits_kept_max": settings.commits_kept_max + more,
            }
        )
    low, high = settings.commits_kept_min, settings.commits_kept_max
    if high <= low:
        raise SettingError(
            "archiving begins above the greater number and leaves the smaller one; raise "
            f"{keys[1]} or lower {keys[0]}: {keys[0]}={low}, {keys[1]}={high}",
            kind="archive_range",
            key=keys[1],
            value=str(high),
        )
    if low <= retained and settings.automatic:
        raise SettingError(
            "cleaning looks at every commit it retains, so more must stay on the active "
            f"timeline; raise {keys[0]} or lower hoodie.clean.commits.retained: "
            f"{keys[0]}={low}, hoodie.clean.commits.retained={retained}",
            kind="archive_retention",
            key=keys[0],
            value=str(low),
        )
    return settings
