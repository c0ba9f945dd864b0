"""
Settings of cleaning, read from ``hoodie.clean.*`` (and Hudi's older ``hoodie.cleaner.*``) keys.

Defaults are those of Hudi 1.2.0. Contradictory settings are refused before a plan is made, because
files deleted by a wrong retention cannot be restored.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from pydantic import Field

from timeline.properties.option_settings import OptionSettings, option
from timeline.properties.setting_enums import FailedWritesPolicy

__all__ = ["CleaningPolicy", "CleaningSettings", "TriggerStrategy"]


class CleaningPolicy(Enum):
    """The retention policy; the value is Hudi's name, also inside clean instants."""

    COMMITS = "KEEP_LATEST_COMMITS"
    VERSIONS = "KEEP_LATEST_FILE_VERSIONS"
    HOURS = "KEEP_LATEST_BY_HOURS"


class TriggerStrategy(Enum):
    """The rule by which a clean becomes due."""

    NUM_COMMITS = "NUM_COMMITS"


_Count = Annotated[int, Field(ge=1, le=1_000_000_000)]


class CleaningSettings(OptionSettings):
    """All settings of cleaning."""

    automatic: bool = option(
        "hoodie.clean.automatic",
        True,
        "Clean after a commit.",
        aliases=("hoodie.cleaner.automatic",),
    )
    asynchronous: bool = option(
        "hoodie.clean.async",
        False,
        "Clean on a thread beside the writes instead of after a commit.",
        aliases=("hoodie.clean.async.enabled",),
    )
    policy: CleaningPolicy = option(
        "hoodie.clean.policy",
        CleaningPolicy.COMMITS,
        "What is kept: slices of the latest commits, latest slices, or those of some hours.",
        aliases=("hoodie.cleaner.policy",),
    )
    commits_retained: _Count = option(
        "hoodie.clean.commits.retained",
        10,
        "How many of the latest commits time travel can go back to.",
        aliases=("hoodie.cleaner.commits.retained",),
    )
    versions_retained: _Count = option(
        "hoodie.clean.fileversions.retained",
        3,
        "How many file slices of each file group are kept.",
        aliases=("hoodie.cleaner.fileversions.retained",),
    )
    hours_retained: Annotated[int, Field(ge=1, le=24 * 366 * 100)] = option(
        "hoodie.clean.hours.retained",
        24,
        "For how many hours time travel can go back.",
        aliases=("hoodie.cleaner.hours.retained",),
    )
    trigger: TriggerStrategy = option(
        "hoodie.clean.trigger.strategy", TriggerStrategy.NUM_COMMITS, "When a clean is planned."
    )
    trigger_commits: _Count = option(
        "hoodie.clean.trigger.max.commits",
        1,
        "Commits since the last clean after which the next one is planned.",
        aliases=("hoodie.clean.max.commits",),
    )
    incremental: bool = option(
        "hoodie.cleaner.incremental.mode",
        True,
        "Look only at partitions written since the line of the last clean.",
        aliases=("hoodie.clean.incremental.enabled",),
    )
    failed_writes: FailedWritesPolicy | None = option(
        "hoodie.clean.failed.writes.policy",
        None,
        "LAZY (and when unset): cleaning also rolls back writers that seem dead.",
        aliases=("hoodie.cleaner.policy.failed.writes",),
    )

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
