"""
Settings of archiving, read from ``hoodie.archive.*`` and ``hoodie.keep.*`` keys.

Defaults are those of Hudi 1.2.0. Commits that cleaning retains remain on the active timeline,
because the cleaner needs them. Settings that contradict this are refused before anything moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import Field

from tableservices.cleaning.settings import CleaningPolicy, CleaningSettings
from tableservices.compaction.settings import CompactionSettings
from timeline.errors import SettingError
from timeline.model.instant_time import InstantTime
from timeline.properties.option_settings import OptionSettings, option
from timeline.properties.options import OptionKind, as_property_set

__all__ = ["ArchiveRules", "ArchivingSettings", "archiving_settings"]


_Count = Annotated[int, Field(ge=2, le=1_000_000_000)]


class ArchivingSettings(OptionSettings):
    """All settings of archiving."""

    automatic: bool = option(
        "hoodie.archive.automatic",
        True,
        "Archive after a commit, once there are more commits than are kept.",
    )
    asynchronous: bool = option(
        "hoodie.archive.async",
        False,
        "Archive on a thread beside the writes instead of after a commit.",
    )
    commits_kept_min: _Count = option(
        "hoodie.keep.min.commits",
        20,
        "How many commits stay on the active timeline after archiving.",
    )
    commits_kept_max: _Count = option(
        "hoodie.keep.max.commits",
        30,
        "Archiving begins when the active timeline has more commits than this.",
    )
    beyond_savepoint: bool = option(
        "hoodie.archive.beyond.savepoint",
        False,
        "Archive commits behind the first savepoint too, without those that are saved. Java "
        "Hudi (1.2.0) then shows no row that lies only in what was archived above a saved one, "
        "and nobody can restore to that savepoint. `hoodoo savepoint delete` archives a saved "
        "one that stayed behind first; another engine's deletion hides the archived rows above "
        "it until the next archive.",
    )
    not_past_clean: bool = option(
        "hoodie.archive.block.on.latest.clean.ectr",
        False,
        "Keep everything since the earliest commit that the last clean retained.",
    )
    merged_files: _Count = option(
        "hoodie.timeline.compaction.batch.size",
        10,
        "So many files of one level of the history are merged into one of the next.",
    )
    merged_bytes_max: Annotated[int, Field(ge=1, le=2**40)] = option(
        "hoodie.timeline.compaction.target.file.max.bytes",
        1_048_576_000,
        "Files of the history are merged up to this size together, bytes.",
    )
    batches_kept_ms: Annotated[int, OptionKind.MS, Field(ge=0, le=2**53)] = option(
        "hoodoo.batch.retention.ms",
        604_800_000,
        "How long a batch id is remembered, from the completion of its commit; as long as that "
        "is on the active timeline in any case. A repeat that comes later is written again. Ids "
        "are one space for a table: two sources must not use the same ones.",
    )
    batches_together: Annotated[int, Field(ge=1, le=1_000_000)] = option(
        "hoodoo.batch.boundary.ids",
        512,
        "So many batch ids are repeated by each archiving; the others stay in earlier files.",
    )

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
    keys = [ArchivingSettings.options[one].key for one in ("commits_kept_min", "commits_kept_max")]
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
