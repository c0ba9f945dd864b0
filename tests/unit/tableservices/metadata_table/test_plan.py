"""When the metadata table is compacted, and which instants and slices may go; pure (MDT-8)."""

from __future__ import annotations

import pytest

from tableservices.compaction.plan import CompactionTrigger
from tableservices.metadata_table.plan import (
    COMPLETION_KEY,
    MetadataServiceSettings,
    archivable,
    completion_time_of,
    delta_commits,
    is_due,
    newest_compaction,
    retained_since,
    truncation_limit,
)
from timeline.model.instant_time import EARLIEST, WallMs
from timeline.model.plans import CompactionPlan
from timeline.snapshot import ActiveTimeline

DAY = "20260102"


def at(number: int) -> str:
    """Return the time of a minute."""
    return f"{DAY}{number // 60:02}{number % 60:02}00000"


def timeline(*names: str) -> ActiveTimeline:
    return ActiveTimeline.of(names)


def delta(began: int, completed: int | None = None) -> str:
    return f"{at(began)}_{at(began + 1 if completed is None else completed)}.deltacommit"


def compaction(began: int) -> str:
    return f"{at(began)}_{at(began + 1)}.commit"


def deltas(*numbers: int) -> list[str]:
    return [delta(number) for number in numbers]


# ---- When a compaction is due


def test_delta_commits_count_from_the_newest_compaction_by_their_completion() -> None:
    own = timeline(*deltas(2, 4), delta(6, 12), compaction(10), delta(20))
    assert newest_compaction(own) == newest_compaction(timeline(compaction(10)))
    assert delta_commits(own) == 2


@pytest.mark.parametrize(
    ("trigger", "due"),
    [
        (CompactionTrigger.NUM_COMMITS, False),
        (CompactionTrigger.TIME_ELAPSED, True),
        (CompactionTrigger.NUM_AND_TIME, False),
        (CompactionTrigger.NUM_OR_TIME, True),
    ],
)
def test_the_trigger_decides_by_number_or_by_time(trigger: CompactionTrigger, due: bool) -> None:
    settings = MetadataServiceSettings(trigger=trigger, commits_max=3, seconds_max=3_600)
    own = timeline(*deltas(0, 2))
    an_hour_later = WallMs(1_767_312_000_000 + 3_600_000)  # of 2026-01-02 00:00 UTC
    assert is_due(own, settings, an_hour_later) is due
    assert is_due(own, settings, WallMs(an_hour_later - 1)) is False


def test_a_metadata_table_that_was_just_built_is_not_due_by_time() -> None:
    settings = MetadataServiceSettings(trigger=CompactionTrigger.TIME_ELAPSED, seconds_max=1)
    built = timeline(f"{EARLIEST}_{at(1)}.deltacommit")
    assert not is_due(built, settings, WallMs(1_900_000_000_000))


def test_the_plan_of_another_engine_names_no_completion_time() -> None:
    named = CompactionPlan(extra_metadata={COMPLETION_KEY: at(3)})
    assert completion_time_of(named, at(2)) == at(3)
    assert completion_time_of(named, at(3)) is None, "a completion is above its request"
    assert completion_time_of(CompactionPlan(extra_metadata=None), at(2)) is None
    assert completion_time_of(CompactionPlan(extra_metadata={COMPLETION_KEY: "x"}), at(2)) is None


# ---- Slices


def test_slices_are_kept_from_the_newest_old_compaction_that_is_not_the_newest() -> None:
    own = timeline(compaction(10), compaction(20), compaction(30))
    assert retained_since(own, [at(10), at(20), at(30)]) == at(20)
    assert retained_since(own, [at(10)]) == at(10)
    assert retained_since(own, [at(30)]) is None, "the newest one alone deletes nothing"
    assert retained_since(own, []) is None


# ---- Instants of the metadata table


def moved(own: ActiveTimeline, table: ActiveTimeline, kept: int = 2) -> list[str]:
    found = archivable(own, table, kept_min=kept, kept_max=kept + 1)
    return [one.requested_time for one in found]


OWN = [*deltas(2, 4, 6, 8), compaction(10), *deltas(12, 14, 16)]


def test_instants_are_archived_below_the_newest_compaction_only() -> None:
    table = timeline(*deltas(14, 16))
    assert moved(timeline(*OWN), table) == [at(2), at(4), at(6), at(8)]
    assert moved(timeline(*deltas(2, 4, 6, 8, 12, 14, 16)), table) == [], "no compaction"


def test_an_instant_that_completed_after_the_compaction_stays_with_all_later_ones() -> None:
    own = timeline(delta(2), delta(3, 11), *deltas(4, 6), compaction(10), *deltas(12, 14, 16))
    assert moved(own, timeline(*deltas(14, 16))) == [at(2)]


@pytest.mark.parametrize(
    "needed", [delta(4), f"{at(4)}_{at(5)}.clean", f"{at(4)}.commit.requested"]
)
def test_an_instant_that_the_table_still_shows_stays_with_all_later_ones(needed: str) -> None:
    assert moved(timeline(*OWN), timeline(needed, delta(16))) == [at(2)]


def test_a_pending_instant_of_the_metadata_table_holds_its_archive() -> None:
    own = timeline(*OWN, f"{at(5)}.deltacommit.requested")
    assert moved(own, timeline(delta(16))) == [at(2), at(4)]


def test_some_commits_more_than_on_the_table_stay() -> None:
    table = timeline(delta(16))
    assert len(timeline(*OWN).completed_writes) - len(moved(timeline(*OWN), table, kept=5)) == 6
    assert moved(timeline(*OWN), table, kept=6) == []


def test_cleans_and_rollbacks_of_java_go_with_the_writes_around_them() -> None:
    own = timeline(
        *OWN, f"{at(3)}_{at(3)}.clean", f"{at(5)}_{at(5)}.rollback", f"{at(9)}_{at(9)}.clean"
    )
    assert moved(own, timeline(delta(16))) == [at(2), at(3), at(4), at(5), at(6), at(8)]


# ---- Instants of the table


def test_the_table_archives_nothing_without_a_compaction_of_its_metadata_table() -> None:
    assert truncation_limit(timeline(*deltas(2, 4)), None) == EARLIEST


def test_the_table_keeps_its_first_instant_that_completed_after_the_compaction() -> None:
    own = newest_compaction(timeline(compaction(10)))
    assert truncation_limit(timeline(*deltas(2, 4)), own) is None
    assert truncation_limit(timeline(*deltas(2, 12, 14)), own) == at(12)
    late = timeline(*deltas(2, 4), delta(3, 11), delta(14))
    assert truncation_limit(late, own) == at(3), "it completed late, although it began early"
    clean = timeline(delta(2), f"{at(4)}_{at(11)}.clean")
    assert truncation_limit(clean, own) == at(4)
    saved = timeline(delta(2), f"{at(2)}_{at(20)}.savepoint")
    assert truncation_limit(saved, own) is None, "a savepoint has no records"
