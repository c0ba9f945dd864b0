"""
Every cell of the action matrix: against the rules, and played on a table where it can be.

A story is one side's act on a small table. Mine begins, theirs comes to its standing, mine
goes on; what became of mine must be what the cell says.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from filegroups.table import Table
from filegroups.writing.commit_result import Receipt
from tableservices.archiving.execute import archive
from tableservices.archiving.settings import ArchiveRules
from tableservices.cleaning.execute import clean
from tableservices.cleaning.settings import CleaningSettings
from tableservices.clustering.execute import execute_clustering
from tableservices.clustering.plan import schedule_clustering
from tableservices.clustering.settings import ClusteringSettings
from tableservices.compaction.execute import execute_compaction, schedule_compaction
from tableservices.compaction.settings import CompactionSettings
from tableservices.logcompaction.execute import execute_log_compaction, schedule_log_compaction
from tableservices.logcompaction.plan import LogCompactionSettings
from tableservices.restoring.restore import restore
from tableservices.restoring.savepoints import savepoint
from tests.unit.timeline.engine import (
    BRISK,
    SMALL,
    begun,
    new_table,
    opened,
    put,
    rows_of,
    upsert,
)
from timeline.errors import HoodooError, InstantNotFoundError
from timeline.model.commit_metadata import TableType, WriteOperation
from timeline.model.instant import Action
from timeline.model.write_set import Claim, FileGroupId, Touch, TouchedFileGroup
from timeline.pending_plans import file_groups_in_clustering, pending_compactions
from timeline.properties.setting_enums import ClusteringUpdates
from timeline.rollback.rollback import rollback
from timeline.rules.action_matrix import (
    ACTION_MATRIX,
    BY_STRATEGY,
    Deed,
    Outcome,
    Standing,
)
from timeline.rules.conflicts import (
    STRATEGIES,
    Clean,
    Rebaseable,
    Refused,
    Rival,
    find_strategy,
    judge,
    objection_to,
)

PENDING, COMPLETED = Standing.PENDING, Standing.COMPLETED
WRITES = (Deed.INSERT, Deed.UPDATE, Deed.APPEND, Deed.OVERWRITE)
PLANS = (Deed.COMPACTION, Deed.LOG_COMPACTION, Deed.CLUSTERING)
UPKEEP = (Deed.CLEAN, Deed.ROLLBACK, Deed.RESTORE, Deed.SAVEPOINT, Deed.ARCHIVE)
APART = replace(SMALL, sizes=replace(SMALL.sizes, small_file_bytes=0))
CLUSTERING = ClusteringSettings(sort_columns=("v",))


def test_every_pair_of_deeds_has_a_cell_for_each_standing() -> None:
    assert set(ACTION_MATRIX) == set(itertools.product(Deed, Deed, Standing))


def test_strategies_differ_in_cells_that_are_there_and_never_for_less_safety() -> None:
    assert set(BY_STRATEGY) == {strategy.name for strategy in STRATEGIES}
    for table in BY_STRATEGY.values():
        for place, cell in table.items():
            assert cell != ACTION_MATRIX[place]
            assert cell.outcome is not Outcome.STANDS


# against the rules

GROUP, FRESH, OTHER = (FileGroupId("x", name) for name in ("a", "mine", "theirs"))


def touching(deed: Deed, fresh: FileGroupId) -> Claim:
    touch = {Deed.UPDATE: Touch.BASE, Deed.COMPACTION: Touch.BASE}.get(deed, Touch.LOG)
    if deed is Deed.INSERT:
        return Claim.of([TouchedFileGroup(file_group=fresh, touch=Touch.NEW)])
    one = TouchedFileGroup(file_group=GROUP, touch=touch)
    if deed in (Deed.OVERWRITE, Deed.CLUSTERING):
        replaced = replace(one, touch=Touch.REPLACE)
        new = TouchedFileGroup(file_group=fresh, touch=Touch.NEW)
        return Claim.of([replaced, new], ["x"] if deed is Deed.OVERWRITE else [])
    return Claim.of([one])


def judged(mine: Deed, theirs: Deed, strategy_name: str) -> tuple[str, Outcome]:
    """The verdict on a write beside a completed rival that began before it."""
    moves = theirs in (Deed.COMPACTION, Deed.LOG_COMPACTION)
    rival = Rival(
        action=Action.CLUSTERING if theirs is Deed.CLUSTERING else Action.COMMIT,
        requested_time="20260102030405000",
        completion_time="20260102030405011",
        claim=touching(theirs, OTHER),
        is_compaction=moves,
    )
    claim, strategy = touching(mine, FRESH), find_strategy(strategy_name)
    assert strategy is not None
    verdict = judge(claim, "20260102030405004", [rival])
    if not isinstance(verdict, Refused):
        verdict = objection_to(claim, [rival], strategy) or verdict
    if isinstance(verdict, Clean):
        return "C0", Outcome.STANDS
    redo = Outcome.REDO_FILE_GROUPS if isinstance(verdict, Rebaseable) else Outcome.REDO_ALL
    return verdict.rule.value, redo


@pytest.mark.parametrize("strategy", ["simple", "prefer_writer", "partition"])
@pytest.mark.parametrize("theirs", [*WRITES, *PLANS], ids=lambda deed: deed.name)
@pytest.mark.parametrize("mine", WRITES, ids=lambda deed: deed.name)
def test_cells_of_writes_are_what_the_rules_say(mine: Deed, theirs: Deed, strategy: str) -> None:
    place = (mine, theirs, COMPLETED)
    cell = BY_STRATEGY[strategy].get(place, ACTION_MATRIX[place])
    expected = (cell.rule.value, cell.outcome)
    if cell.rule.value == "C9":
        expected = ("C0", Outcome.STANDS)  # keys are compared by a check, played below
    assert judged(mine, theirs, strategy) == expected


# played


def row(key: str, ts: int, v: int, p: str = "x") -> dict[str, Any]:
    return {"id": key, "p": p, "ts": ts, "v": v}


@dataclass
class Scene:
    """One table with two file groups in partition x and one in y; with logs on request."""

    table: Table
    first: str

    @staticmethod
    def of(deeds: set[Deed], limits: Any = BRISK) -> Scene:
        logs = deeds & {Deed.APPEND, Deed.COMPACTION, Deed.LOG_COMPACTION}
        kind = TableType.MERGE_ON_READ if logs else TableType.COPY_ON_WRITE
        table = new_table(table_type=kind, limits=limits)
        put(table, WriteOperation.INSERT, [row("a", 1, 1), row("y", 1, 1, "y")], files=APART)
        put(table, WriteOperation.INSERT, [row("b", 1, 1), row("z", 1, 1, "y")], files=APART)
        newest = put(table, WriteOperation.INSERT, [row("q", 1, 1, "q")], files=APART)
        first = newest.requested_time
        if Deed.RESTORE in deeds:
            savepoint(table.context, first)
        for ts in (2, 3):
            first = upsert(table, [row("a", ts, ts)]).requested_time
        return Scene(table, first)

    def other(self) -> Table:
        return opened(self.table)


def write_rows(deed: Deed, *, theirs: bool) -> tuple[WriteOperation, list[dict[str, Any]], Any]:
    value = 8 if theirs else 9
    if deed is Deed.INSERT:
        return WriteOperation.UPSERT, [row("n", value, value)], APART
    if deed is Deed.OVERWRITE:
        return WriteOperation.INSERT_OVERWRITE, [row("o", value, value)], APART
    return WriteOperation.UPSERT, [row("a", value, value)], APART


def bring(scene: Scene, deed: Deed, standing: Standing) -> object:
    """Let one side come to its standing."""
    other = scene.other()
    context = other.context
    if deed in WRITES:
        operation, rows, files = write_rows(deed, theirs=True)
        finish = begun(other, operation, rows, files=files)
        return finish() if standing is COMPLETED else None
    if deed in PLANS:
        planned = plan(other, deed)
        return carry_out(other, deed, planned) if standing is COMPLETED else None
    if deed is Deed.CLEAN:
        return clean(context, CleaningSettings(commits_retained=1))
    if deed is Deed.ROLLBACK:
        pending = context.active().pending_ingestion
        return [rollback(context, one) for one in pending]
    if deed is Deed.RESTORE:
        return restore(context, savepoint_of(other), force=True)
    if deed is Deed.SAVEPOINT:
        return savepoint(context, scene.first)
    return archive(context, ArchiveRules.from_properties(KEEP_FEW))


KEEP_FEW = {
    "hoodie.clean.commits.retained": "1",
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
}


def savepoint_of(table: Table) -> str:
    return next(
        i.requested_time for i in table.context.active().instants if i.action is Action.SAVEPOINT
    )


def plan(table: Table, deed: Deed) -> Any:
    context = table.context
    if deed is Deed.COMPACTION:
        return schedule_compaction(context, CompactionSettings(), SMALL)
    if deed is Deed.LOG_COMPACTION:
        return schedule_log_compaction(context, LogCompactionSettings(blocks_min=2))
    return schedule_clustering(context, CLUSTERING)


def carry_out(table: Table, deed: Deed, planned: Any) -> Any:
    context = table.context
    if deed is Deed.COMPACTION:
        return execute_compaction(context, planned, SMALL)
    if deed is Deed.LOG_COMPACTION:
        return execute_log_compaction(context, planned, SMALL)
    return execute_clustering(context, planned, CLUSTERING, SMALL)


def ran(work: Callable[[], Receipt]) -> tuple[str, Outcome]:
    """What became of a write."""
    try:
        receipt = work()
    except HoodooError as error:
        return error.fields.get("report", {}).get("rule", "C8"), Outcome.REFUSED
    if receipt.attempts == 1:
        return "C0", Outcome.STANDS
    first = receipt.refusals[0]
    groups = first.redo == "file groups"
    return first.rule, Outcome.REDO_FILE_GROUPS if groups else Outcome.REDO_ALL


def play_write(scene: Scene, mine: Deed, theirs: Deed, standing: Standing) -> tuple[str, Outcome]:
    operation, rows, files = write_rows(mine, theirs=False)
    act = lambda: bring(scene, theirs, standing)  # noqa: E731
    return ran(lambda: put(scene.table, operation, rows, act, files=files))


#: Rows of copy-on-write tables meet logs only where small files are filled, and a compaction's
#: plan beside a base file that began before only where a bucket is opened: judged above.
UNPLAYED = {
    *((Deed.UPDATE, theirs) for theirs in (Deed.APPEND, Deed.COMPACTION, Deed.LOG_COMPACTION)),
    (Deed.APPEND, Deed.UPDATE),
}
COLUMNS = [
    *((deed, standing) for deed in (*WRITES, *PLANS) for standing in Standing),
    *((deed, COMPLETED) for deed in UPKEEP),
]


@pytest.mark.parametrize(
    ("mine", "theirs", "standing"),
    [
        pytest.param(mine, theirs, standing, id=f"{mine.name}-{theirs.name}-{standing.value}")
        for mine in WRITES
        for theirs, standing in COLUMNS
        if (mine, theirs) not in UNPLAYED
    ],
)
def test_what_becomes_of_a_write(mine: Deed, theirs: Deed, standing: Standing) -> None:
    scene = Scene.of({mine, theirs})
    cell = ACTION_MATRIX[mine, theirs, standing]
    rule, outcome = play_write(scene, mine, theirs, standing)
    if outcome is Outcome.REDO_ALL and cell.outcome is Outcome.REDO_FILE_GROUPS:
        outcome = Outcome.REDO_FILE_GROUPS  # the rival began later
    if theirs is Deed.RESTORE and rule == "C7":
        rule = "C6"  # the file to merge into was gone before the restore was looked for
    assert (rule, outcome) == (cell.rule.value, cell.outcome)


@pytest.mark.parametrize("mine", [Deed.UPDATE, Deed.APPEND, Deed.OVERWRITE], ids=lambda d: d.name)
def test_a_clustering_that_refuses_writes_is_met_or_cancelled(mine: Deed) -> None:
    refusing = replace(BRISK, clustering_updates=ClusteringUpdates.REJECT)
    scene = Scene.of({mine}, refusing)
    bring(scene, Deed.CLUSTERING, PENDING)
    operation, rows, files = write_rows(mine, theirs=False)
    assert ran(lambda: put(scene.table, operation, rows, files=files)) == ("C8", Outcome.REFUSED)
    first = opened(scene.table, limits=replace(refusing, cancels_met_plans=True))
    assert ran(lambda: put(first, operation, rows, files=files)) == ("C0", Outcome.STANDS)
    assert BY_STRATEGY["prefer_writer"][mine, Deed.CLUSTERING, PENDING].outcome is Outcome.ENDS_IT


@pytest.mark.parametrize(
    ("mine", "theirs", "standing"),
    [
        pytest.param(mine, theirs, standing, id=f"{mine.name}-{theirs.name}-{standing.value}")
        for mine in PLANS
        for theirs, standing in COLUMNS
        if ACTION_MATRIX[mine, theirs, standing].outcome is not Outcome.NEVER
        # Logs come to base files only where small files are filled, which have no logs.
        and (mine is Deed.CLUSTERING or theirs is not Deed.UPDATE)
    ],
)
def test_what_becomes_of_a_plan(mine: Deed, theirs: Deed, standing: Standing) -> None:
    scene = Scene.of({mine, theirs})
    planned = plan(scene.table, mine)
    bring(scene, theirs, standing)
    cell = ACTION_MATRIX[mine, theirs, standing]
    try:
        receipt = carry_out(scene.table, mine, planned)
    except InstantNotFoundError:
        receipt = None  # a restore took the plan away
    outcome = Outcome.YIELDS if receipt is None else Outcome.STANDS
    if receipt is not None and getattr(receipt, "groups_left_out", 0):
        outcome = Outcome.LEAVES_OUT
    assert outcome is cell.outcome


@pytest.mark.parametrize("theirs", PLANS, ids=lambda deed: deed.name)
@pytest.mark.parametrize("mine", PLANS, ids=lambda deed: deed.name)
def test_no_file_group_is_in_two_pending_plans(mine: Deed, theirs: Deed) -> None:
    assert ACTION_MATRIX[mine, theirs, PENDING].outcome is Outcome.NEVER
    scene = Scene.of({mine, theirs, Deed.APPEND})
    context = scene.table.context
    bring(scene, theirs, PENDING)
    assert len(context.active().pending) == 1
    plan(scene.table, mine)
    timeline = context.active()
    owned = [
        *file_groups_in_clustering(context, timeline),
        *pending_compactions(context, timeline),
        *pending_compactions(context, timeline, action=Action.LOGCOMPACTION),
    ]
    assert len(owned) == len(set(owned))


@pytest.mark.parametrize("theirs", WRITES, ids=lambda deed: deed.name)
def test_a_rollback_ends_what_is_pending_and_nothing_that_is_published(theirs: Deed) -> None:
    scene = Scene.of({theirs})
    other = scene.other()
    operation, rows, files = write_rows(theirs, theirs=True)
    begun(other, operation, rows, files=files)
    [pending] = other.context.active().pending_ingestion
    assert rollback(scene.table.context, pending).slot is not None
    finish = begun(other, operation, rows, files=files)
    [pending] = other.context.active().pending_ingestion
    finish()
    assert rollback(scene.table.context, pending).slot is None
    assert ACTION_MATRIX[Deed.ROLLBACK, theirs, PENDING].outcome is Outcome.ENDS_IT
    assert ACTION_MATRIX[Deed.ROLLBACK, theirs, COMPLETED].outcome is Outcome.YIELDS


@pytest.mark.parametrize("standing", Standing, ids=lambda one: one.value)
@pytest.mark.parametrize("theirs", [*WRITES, *PLANS], ids=lambda deed: deed.name)
def test_a_restore_takes_away_what_came_after_and_spares_the_living(
    theirs: Deed, standing: Standing
) -> None:
    scene = Scene.of({Deed.RESTORE, theirs})
    bring(scene, theirs, standing)
    context = scene.table.context
    try:
        restore(context, savepoint_of(scene.table))
        outcome = Outcome.ENDS_IT
    except HoodooError:
        outcome = Outcome.REFUSED
    assert outcome is ACTION_MATRIX[Deed.RESTORE, theirs, standing].outcome
    assert outcome is Outcome.REFUSED or context.active().pending == ()


@pytest.mark.parametrize(
    ("mine", "theirs", "standing"),
    [
        pytest.param(mine, theirs, standing, id=f"{mine.name}-{theirs.name}-{standing.value}")
        for mine in (Deed.CLEAN, Deed.SAVEPOINT, Deed.ARCHIVE)
        for theirs, standing in COLUMNS
        if ACTION_MATRIX[mine, theirs, standing].outcome is not Outcome.REFUSED
        and (mine, theirs) != (Deed.SAVEPOINT, Deed.SAVEPOINT)  # a write has one
    ],
)
def test_upkeep_takes_nothing_from_others(mine: Deed, theirs: Deed, standing: Standing) -> None:
    scene = Scene.of({theirs})
    bring(scene, theirs, standing)
    context = scene.table.context
    before, rows = context.active().pending, rows_of(scene.other(), "id", "v")
    bring(scene, mine, COMPLETED)
    assert context.active().pending == before
    assert rows_of(scene.other(), "id", "v") == rows
    assert ACTION_MATRIX[mine, theirs, standing].outcome in (Outcome.STANDS, Outcome.LEAVES_OUT)


def test_a_state_whose_files_were_cleaned_gets_no_savepoint() -> None:
    scene = Scene.of({Deed.UPDATE})
    old = scene.first
    for ts in (5, 6, 7):
        upsert(scene.table, [row("a", ts, ts)])
    bring(scene, Deed.CLEAN, COMPLETED)
    with pytest.raises(HoodooError, match="clean"):
        savepoint(scene.table.context, old)
    assert ACTION_MATRIX[Deed.SAVEPOINT, Deed.CLEAN, COMPLETED].outcome is Outcome.REFUSED
