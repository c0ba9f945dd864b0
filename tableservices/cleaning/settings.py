"""
Settings of cleaning, read from ``hoodie.clean.*`` (and Hudi's older ``hoodie.cleaner.*``) keys.

Defaults are those of Hudi 1.2.0. Contradictory settings are refused before a plan is made, because
files deleted by a wrong retention cannot be restored.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Annotated, ClassVar

from pydantic import Field

from timeline.properties.option_settings import OptionSettings
from timeline.properties.options import Option, OptionKind
from timeline.properties.setting_enums import FailedWritesPolicy

__all__ = ["CLEANING_OPTIONS", "CleaningPolicy", "CleaningSettings", "TriggerStrategy"]


class CleaningPolicy(Enum):
    """The retention policy; the value is Hudi's name, also inside clean instants."""

    COMMITS = "KEEP_LATEST_COMMITS"
    VERSIONS = "KEEP_LATEST_FILE_VERSIONS"
    HOURS = "KEEP_LATEST_BY_HOURS"


class TriggerStrategy(Enum):
    """The rule by which a clean becomes due."""

    NUM_COMMITS = "NUM_COMMITS"


_BOOL, _INT, _ENUM = OptionKind.BOOL, OptionKind.INT, OptionKind.ENUM

# By the field of CleaningSettings that it sets.
CLEANING_OPTIONS: Mapping[str, Option] = {
    "automatic": Option(
        key="hoodie.clean.automatic",
        aliases=("hoodie.cleaner.automatic",),
        default="true",
        kind=_BOOL,
        doc="Clean after a commit.",
    ),
    "asynchronous": Option(
        key="hoodie.clean.async",
        aliases=("hoodie.clean.async.enabled",),
        default="false",
        kind=_BOOL,
        doc="Clean on a thread beside the writes instead of after a commit.",
    ),
    "policy": Option(
        key="hoodie.clean.policy",
        aliases=("hoodie.cleaner.policy",),
        default=CleaningPolicy.COMMITS.value,
        kind=_ENUM,
        choices=tuple(policy.value for policy in CleaningPolicy),
        doc="What is kept: slices of the latest commits, latest slices, or those of some hours.",
    ),
    "commits_retained": Option(
        key="hoodie.clean.commits.retained",
        aliases=("hoodie.cleaner.commits.retained",),
        default="10",
        kind=_INT,
        doc="How many of the latest commits time travel can go back to.",
    ),
    "versions_retained": Option(
        key="hoodie.clean.fileversions.retained",
        aliases=("hoodie.cleaner.fileversions.retained",),
        default="3",
        kind=_INT,
        doc="How many file slices of each file group are kept.",
    ),
    "hours_retained": Option(
        key="hoodie.clean.hours.retained",
        aliases=("hoodie.cleaner.hours.retained",),
        default="24",
        kind=_INT,
        doc="For how many hours time travel can go back.",
    ),
    "trigger": Option(
        key="hoodie.clean.trigger.strategy",
        default=TriggerStrategy.NUM_COMMITS.value,
        kind=_ENUM,
        choices=tuple(strategy.value for strategy in TriggerStrategy),
        doc="When a clean is planned.",
    ),
    "trigger_commits": Option(
        key="hoodie.clean.trigger.max.commits",
        aliases=("hoodie.clean.max.commits",),
        default="1",
        kind=_INT,
        doc="Commits since the last clean after which the next one is planned.",
    ),
    "incremental": Option(
        key="hoodie.cleaner.incremental.mode",
        aliases=("hoodie.clean.incremental.enabled",),
        default="true",
        kind=_BOOL,
        doc="Look only at partitions written since the line of the last clean.",
    ),
    "failed_writes": Option(
        key="hoodie.clean.failed.writes.policy",
        aliases=("hoodie.cleaner.policy.failed.writes",),
        kind=_ENUM,
        choices=tuple(policy.value for policy in FailedWritesPolicy),
        doc="LAZY (and when unset): cleaning also rolls back writers that seem dead.",
    ),
}

_Count = Annotated[int, Field(ge=1, le=1_000_000_000)]


class CleaningSettings(OptionSettings):
    """All settings of cleaning; the fields of ``CLEANING_OPTIONS``."""

    options: ClassVar[Mapping[str, Option]] = CLEANING_OPTIONS

    automatic: bool = True
    asynchronous: bool = False
    policy: CleaningPolicy = CleaningPolicy.COMMITS
    commits_retained: _Count = 10
    versions_retained: _Count = 3
    hours_retained: Annotated[int, Field(ge=1, le=24 * 366 * 100)] = 24
    trigger: TriggerStrategy = TriggerStrategy.NUM_COMMITS
    trigger_commits: _Count = 1
    incremental: bool = True
    failed_writes: FailedWritesPolicy | None = None

    @property
    def inline(self) -> bool:
        """Return whether a writer cleans after its own commit."""
        return self.automatic and not self.asynchronous

    @property
    def beside(self) -> bool:
        """Return whether a writer cleans on a background thread."""
        return self.automatic and self.asynchronous

    @property
    def rolls_back(self) -> bool:
        """Return whether a clean first rolls back writers with an expired heartbeat."""
        return self.failed_writes in (None, FailedWritesPolicy.LAZY)
