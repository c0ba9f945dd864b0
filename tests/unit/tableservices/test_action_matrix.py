"""
Every cell of the action matrix: against the rules, and played on a table where possible.

A story is one side's act on a small table. Mine begins, theirs advances to its progress, mine
continues. The result of mine must be that of the cell.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from filegroups.table import TableReader
from filegroups.writing.write_request import CommitResult
from tableservices.archiving.execute import archive
from tableservices.archiving.plan import ArchiveRules
from tableservices.cleaning.execute import clean
from tableservices.cleaning.plan import CleaningSettings
from tableservices.clustering.execute import execute_clustering
from tableservices.clustering.plan import schedule_clustering
from tableservices.clustering.settings import ClusteringSettings
from tableservices.compaction.execute import execute_compaction, schedule_compaction
from tableservices.compaction.plan import CompactionSettings
from tableservices.logcompaction.execute import (
    LogCompactionSettings,
    execute_log_compaction,
    schedule_log_compaction,
)
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
from timeline.model.commit_metadata import (
    Access,
    AccessedFileGroup,
    FileGroupId,
    TableType,
    WriteOperation,
    WriteSet,
)
from timeline.model.instant import Action
from timeline.pending_plans import file_groups_in_clustering, pending_compactions
from timeline.properties.setting_enums import ClusteringUpdates
from timeline.rollback.rollback import rollback
from timeline.rules.action_matrix import (
    ACTION_MATRIX,
    BY_STRATEGY,
    MatrixAction,
    MatrixOutcome,
    OtherProgress,
)
from timeline.rules.conflicts import (
    STRATEGIES,
    ConcurrentCommit,
    NoConflict,
    Rebase,
    Rejected,
    find_strategy,
    objection_to,
    validate_write_set,
)

PENDING, COMPLETED = OtherProgress.PENDING, OtherProgress.COMPLETED
WRITES = (MatrixAction.INSERT, MatrixAction.UPDATE, MatrixAction.APPEND, MatrixAction.OVERWRITE)
PLANS = (MatrixAction.COMPACTION, MatrixAction.LOG_COMPACTION, MatrixAction.CLUSTERING)
UPKEEP = (
    MatrixAction.CLEAN,
    MatrixAction.ROLLBACK,
    MatrixAction.RESTORE,
    MatrixAction.SAVEPOINT,
    MatrixAction.ARCHIVE,
)
APART = replace(SMALL, sizes=replace(SMALL.sizes, small_file_bytes=0))
CLUSTERING = ClusteringSettings(sort_columns=("v",))


def test_every_pair_of_actions_has_a_cell_for_each_progress() -> None:
    assert set(ACTION_MATRIX) == set(itertools.product(MatrixAction, MatrixAction, OtherProgress))


def test_strategies_differ_in_cells_that_are_there_and_never_for_less_safety() -> None:
    assert set(BY_STRATEGY) == {strategy.name for strategy in STRATEGIES}
    for table in BY_STRATEGY.values():
        for place, cell in table.items():
            assert cell != ACTION_MATRIX[place]
            assert cell.outcome is not MatrixOutcome.COMMITS


# against the rules

GROUP, FRESH, OTHER = (FileGroupId("x", name) for name in ("a", "mine", "theirs"))


def touching(deed: MatrixAction, fresh: FileGroupId) -> WriteSet:
    touch = {MatrixAction.UPDATE: Access.BASE, MatrixAction.COMPACTION: Access.BASE}.get(
        deed, Access.LOG
    )
    if deed is MatrixAction.INSERT:
        return WriteSet.of([AccessedFileGroup(file_group=fresh, access=Access.NEW)])
    one = AccessedFileGroup(file_group=GROUP, access=touch)
    if deed in (MatrixAction.OVERWRITE, MatrixAction.CLUSTERING):
        replaced = replace(one, access=Access.REPLACE)
        new = AccessedFileGroup(file_group=fresh, access=Access.NEW)
        return WriteSet.of([replaced, new], ["x"] if deed is MatrixAction.OVERWRITE else [])
    return WriteSet.of([one])


def judged(
    mine: MatrixAction, theirs: MatrixAction, strategy_name: str
) -> tuple[str, MatrixOutcome]:
    """The verdict on a write with a completed concurrent commit that began before it."""
    moves = theirs in (MatrixAction.COMPACTION, MatrixAction.LOG_COMPACTION)
    concurrent = ConcurrentCommit(
        action=Action.CLUSTERING if theirs is MatrixAction.CLUSTERING else Action.COMMIT,
        requested_time="20260102030405000",
        completion_time="20260102030405011",
        write_set=touching(theirs, OTHER),
        is_compaction=moves,
    )
    write_set, strategy = touching(mine, FRESH), find_strategy(strategy_name)
    assert strategy is not None
    verdict = validate_write_set(write_set, "20260102030405004", [concurrent])
    if not isinstance(verdict, Rejected):
        verdict = objection_to(write_set, [concurrent], strategy) or verdict
    if isinstance(verdict, NoConflict):
        return "C0", MatrixOutcome.COMMITS
    repeated = MatrixOutcome.REBASES if isinstance(verdict, Rebase) else MatrixOutcome.RETRIES
    return verdict.rule.value, repeated


@pytest.mark.parametrize("strategy", ["simple", "prefer_writer", "partition"])
@pytest.mark.parametrize("theirs", [*WRITES, *PLANS], ids=lambda deed: deed.name)
@pytest.mark.parametrize("mine", WRITES, ids=lambda deed: deed.name)
def test_cells_of_writes_follow_from_the_rules(
    mine: MatrixAction, theirs: MatrixAction, strategy: str
) -> None:
    place = (mine, theirs, COMPLETED)
    cell = BY_STRATEGY[strategy].get(place, ACTION_MATRIX[place])
    expected = (cell.rule.value, cell.outcome)
    if cell.rule.value == "C9":
        expected = ("C0", MatrixOutcome.COMMITS)  # keys are compared by a check, played below
    assert judged(mine, theirs, strategy) == expected


# played


def row(key: str, ts: int, v: int, p: str = "x") -> dict[str, Any]:
    return {"id": key, "p": p, "ts": ts, "v": v}


@dataclass
class Scene:
    """One table with two file groups in partition x and one in y; with logs on request."""

    table: TableReader
    first: str

    @staticmethod
    def of(deeds: set[MatrixAction], limits: Any = BRISK) -> Scene:
        logs = deeds & {MatrixAction.APPEND, MatrixAction.COMPACTION, MatrixAction.LOG_COMPACTION}
        kind = TableType.MERGE_ON_READ if logs else TableType.COPY_ON_WRITE
        table = new_table(table_type=kind, limits=limits)
        put(table, WriteOperation.INSERT, [row("a", 1, 1), row("y", 1, 1, "y")], files=APART)
        put(table, WriteOperation.INSERT, [row("b", 1, 1), row("z", 1, 1, "y")], files=APART)
        newest = put(table, WriteOperation.INSERT, [row("q", 1, 1, "q")], files=APART)
        first = newest.requested_time
        if MatrixAction.RESTORE in deeds:
            savepoint(table.context, first)
        for ts in (2, 3):
            first = upsert(table, [row("a", ts, ts)]).requested_time
        return Scene(table, first)

    def other(self) -> TableReader:
        return opened(self.table)


def write_rows(
    deed: MatrixAction, *, theirs: bool
) -> tuple[WriteOperation, list[dict[str, Any]], Any]:
    value = 8 if theirs else 9
    if deed is MatrixAction.INSERT:
        return WriteOperation.UPSERT, [row("n", value, value)], APART
    if deed is MatrixAction.OVERWRITE:
        return WriteOperation.INSERT_OVERWRITE, [row("o", value, value)], APART
    return WriteOperation.UPSERT, [row("a", value, value)], APART


def advance(scene: Scene, deed: MatrixAction, standing: OtherProgress) -> object:
    """Let one side advance to its progress."""
    other = scene.other()
    context = other.context
    if deed in WRITES:
        operation, rows, files = write_rows(deed, theirs=True)
        finish = begun(other, operation, rows, files=files)
        return finish() if standing is COMPLETED else None
    if deed in PLANS:
        planned = plan(other, deed)
        return carry_out(other, deed, planned) if standing is COMPLETED else None
    if deed is MatrixAction.CLEAN:
        return clean(context, CleaningSettings(commits_retained=1))
    if deed is MatrixAction.ROLLBACK:
        pending = context.active().pending_ingestion
        return [rollback(context, one) for one in pending]
    if deed is MatrixAction.RESTORE:
        return restore(context, savepoint_of(other), force=True)
    if deed is MatrixAction.SAVEPOINT:
        return savepoint(context, scene.first)
    return archive(context, ArchiveRules.from_properties(KEEP_FEW))


KEEP_FEW = {
    "hoodie.clean.commits.retained": "1",
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
}


def savepoint_of(table: TableReader) -> str:
    return next(
        i.requested_time for i in table.context.active().instants if i.action is Action.SAVEPOINT
    )


def plan(table: TableReader, deed: MatrixAction) -> Any:
    context = table.context
    if deed is MatrixAction.COMPACTION:
        return schedule_compaction(context, CompactionSettings(), SMALL)
    if deed is MatrixAction.LOG_COMPACTION:
        return schedule_log_compaction(context, LogCompactionSettings(blocks_min=2))
    return schedule_clustering(context, CLUSTERING)


def carry_out(table: TableReader, deed: MatrixAction, planned: Any) -> Any:
    context = table.context
    if deed is MatrixAction.COMPACTION:
        return execute_compaction(context, planned, SMALL)
    if deed is MatrixAction.LOG_COMPACTION:
        return execute_log_compaction(context, planned, SMALL)
    return execute_clustering(context, planned, CLUSTERING, SMALL)


def ran(work: Callable[[], CommitResult]) -> tuple[str, MatrixOutcome]:
    """The result of a write."""
    try:
        result = work()
    except HoodooError as error:
        return error.fields.get("report", {}).get("rule", "C8"), MatrixOutcome.REJECTED
    if result.attempts == 1:
        return "C0", MatrixOutcome.COMMITS
    first = result.refusals[0]
    groups = first.redo == "file groups"
    return first.rule, MatrixOutcome.REBASES if groups else MatrixOutcome.RETRIES


def play_write(
    scene: Scene, mine: MatrixAction, theirs: MatrixAction, standing: OtherProgress
) -> tuple[str, MatrixOutcome]:
    operation, rows, files = write_rows(mine, theirs=False)
    act = lambda: advance(scene, theirs, standing)  # noqa: E731
    return ran(lambda: put(scene.table, operation, rows, act, files=files))


#: Rows of copy-on-write tables conflict with logs only if small files are filled. A compaction's
#: plan conflicts with an older base file only if a bucket is opened: tested above.
UNPLAYED = {
    *(
        (MatrixAction.UPDATE, theirs)
        for theirs in (MatrixAction.APPEND, MatrixAction.COMPACTION, MatrixAction.LOG_COMPACTION)
    ),
    (MatrixAction.APPEND, MatrixAction.UPDATE),
}
COLUMNS = [
    *((deed, standing) for deed in (*WRITES, *PLANS) for standing in OtherProgress),
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
def test_a_write_has_the_outcome_of_its_cell(
    mine: MatrixAction, theirs: MatrixAction, standing: OtherProgress
) -> None:
    scene = Scene.of({mine, theirs})
    cell = ACTION_MATRIX[mine, theirs, standing]
    rule, outcome = play_write(scene, mine, theirs, standing)
    if outcome is MatrixOutcome.RETRIES and cell.outcome is MatrixOutcome.REBASES:
        outcome = MatrixOutcome.REBASES  # the rival began later
    if theirs is MatrixAction.RESTORE and rule == "C7":
        rule = "C6"  # the file to merge into was deleted before the check for a restore
    assert (rule, outcome) == (cell.rule.value, cell.outcome)


@pytest.mark.parametrize(
    "mine", [MatrixAction.UPDATE, MatrixAction.APPEND, MatrixAction.OVERWRITE], ids=lambda d: d.name
)
def test_a_clustering_that_rejects_writes_conflicts_or_is_cancelled(mine: MatrixAction) -> None:
    refusing = replace(BRISK, clustering_updates=ClusteringUpdates.REJECT)
    scene = Scene.of({mine}, refusing)
    advance(scene, MatrixAction.CLUSTERING, PENDING)
    operation, rows, files = write_rows(mine, theirs=False)
    assert ran(lambda: put(scene.table, operation, rows, files=files)) == (
        "C8",
        MatrixOutcome.REJECTED,
    )
    first = opened(scene.table, limits=replace(refusing, cancels_conflicting_plans=True))
    assert ran(lambda: put(first, operation, rows, files=files)) == ("C0", MatrixOutcome.COMMITS)
    assert (
        BY_STRATEGY["prefer_writer"][mine, MatrixAction.CLUSTERING, PENDING].outcome
        is MatrixOutcome.ENDS_IT
    )


@pytest.mark.parametrize(
    ("mine", "theirs", "standing"),
    [
        pytest.param(mine, theirs, standing, id=f"{mine.name}-{theirs.name}-{standing.value}")
        for mine in PLANS
        for theirs, standing in COLUMNS
        if ACTION_MATRIX[mine, theirs, standing].outcome is not MatrixOutcome.NEVER
        # Logs are added to base files only if small files are filled, and those have no logs.
        and (mine is MatrixAction.CLUSTERING or theirs is not MatrixAction.UPDATE)
    ],
)
def test_a_plan_has_the_outcome_of_its_cell(
    mine: MatrixAction, theirs: MatrixAction, standing: OtherProgress
) -> None:
    scene = Scene.of({mine, theirs})
    planned = plan(scene.table, mine)
    advance(scene, theirs, standing)
    cell = ACTION_MATRIX[mine, theirs, standing]
    try:
        result = carry_out(scene.table, mine, planned)
    except InstantNotFoundError:
        result = None  # a restore took the plan away
    outcome = MatrixOutcome.YIELDS if result is None else MatrixOutcome.COMMITS
    if result is not None and getattr(result, "groups_left_out", 0):
        outcome = MatrixOutcome.LEAVES_OUT
    assert outcome is cell.outcome


@pytest.mark.parametrize("theirs", PLANS, ids=lambda deed: deed.name)
@pytest.mark.parametrize("mine", PLANS, ids=lambda deed: deed.name)
def test_no_file_group_is_in_two_pending_plans(mine: MatrixAction, theirs: MatrixAction) -> None:
    assert ACTION_MATRIX[mine, theirs, PENDING].outcome is MatrixOutcome.NEVER
    scene = Scene.of({mine, theirs, MatrixAction.APPEND})
    context = scene.table.context
    advance(scene, theirs, PENDING)
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
def test_a_rollback_ends_a_pending_write_and_no_committed_one(
    theirs: MatrixAction,
) -> None:
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
    assert ACTION_MATRIX[MatrixAction.ROLLBACK, theirs, PENDING].outcome is MatrixOutcome.ENDS_IT
    assert ACTION_MATRIX[MatrixAction.ROLLBACK, theirs, COMPLETED].outcome is MatrixOutcome.YIELDS


@pytest.mark.parametrize("standing", OtherProgress, ids=lambda one: one.value)
@pytest.mark.parametrize("theirs", [*WRITES, *PLANS], ids=lambda deed: deed.name)
def test_a_restore_deletes_later_instants_and_spares_live_writers(
    theirs: MatrixAction, standing: OtherProgress
) -> None:
    scene = Scene.of({MatrixAction.RESTORE, theirs})
    advance(scene, theirs, standing)
    context = scene.table.context
    try:
        restore(context, savepoint_of(scene.table))
        outcome = MatrixOutcome.ENDS_IT
    except HoodooError:
        outcome = MatrixOutcome.REJECTED
    assert outcome is ACTION_MATRIX[MatrixAction.RESTORE, theirs, standing].outcome
    assert outcome is MatrixOutcome.REJECTED or context.active().pending == ()


@pytest.mark.parametrize(
    ("mine", "theirs", "standing"),
    [
        pytest.param(mine, theirs, standing, id=f"{mine.name}-{theirs.name}-{standing.value}")
        for mine in (MatrixAction.CLEAN, MatrixAction.SAVEPOINT, MatrixAction.ARCHIVE)
        for theirs, standing in COLUMNS
        if ACTION_MATRIX[mine, theirs, standing].outcome is not MatrixOutcome.REJECTED
        and (mine, theirs) != (MatrixAction.SAVEPOINT, MatrixAction.SAVEPOINT)  # a write has one
    ],
)
def test_table_services_take_no_rows_from_writers(
    mine: MatrixAction, theirs: MatrixAction, standing: OtherProgress
) -> None:
    scene = Scene.of({theirs})
    advance(scene, theirs, standing)
    context = scene.table.context
    before, rows = context.active().pending, rows_of(scene.other(), "id", "v")
    advance(scene, mine, COMPLETED)
    assert context.active().pending == before
    assert rows_of(scene.other(), "id", "v") == rows
    assert ACTION_MATRIX[mine, theirs, standing].outcome in (
        MatrixOutcome.COMMITS,
        MatrixOutcome.LEAVES_OUT,
    )


def test_a_cleaned_snapshot_gets_no_savepoint() -> None:
    scene = Scene.of({MatrixAction.UPDATE})
    old = scene.first
    for ts in (5, 6, 7):
        upsert(scene.table, [row("a", ts, ts)])
    advance(scene, MatrixAction.CLEAN, COMPLETED)
    with pytest.raises(HoodooError, match="clean"):
        savepoint(scene.table.context, old)
    assert (
        ACTION_MATRIX[MatrixAction.SAVEPOINT, MatrixAction.CLEAN, COMPLETED].outcome
        is MatrixOutcome.REJECTED
    )
