"""Clustering with concurrent writers: same rows before and after, and the writers never lose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from filegroups.index import LookupRules
from filegroups.keys.bucketing import BucketRules
from filegroups.table import TableReader
from tableservices.archiving.execute import archive
from tableservices.archiving.plan import ArchiveRules
from tableservices.cleaning.execute import clean, remove_stray_files
from tableservices.clustering.curves import Curve
from tableservices.clustering.execute import ClusteringResult, ClusteringService, execute_clustering
from tableservices.clustering.plan import plan_clustering, schedule_clustering
from tableservices.clustering.settings import ClusteringSettings
from tableservices.plan_execution import lease_plan
from tests.unit.timeline.engine import (
    BRISK,
    SMALL,
    Behind,
    StillClock,
    data_files,
    heard,
    leftovers,
    new_table,
    opened,
    put,
    rows_of,
    upsert,
)
from tests.unit.timeline.memory import MemoryStorage, MemoryWorld
from timeline.codecs.instant_avro import decode_requested_replace, encode_requested_replace
from timeline.commit.cancel_plan import cancel_pending_plan
from timeline.errors import (
    CorruptTableError,
    HeartbeatExpiredError,
    InstantNotFoundError,
    InvalidInputError,
    MalformedNameError,
    MissingFileError,
    ServiceConflictError,
    UnsupportedTableError,
)
from timeline.model.commit_metadata import TableType, WriteOperation
from timeline.model.file_names import heartbeat_path, timeline_path
from timeline.model.instant import Action, Instant
from timeline.model.plans import ClusteringGroup, ClusteringPlan
from timeline.model.slot import SlotKind
from timeline.properties.setting_enums import BucketEngine, ClusteringUpdates
from timeline.system import SystemClock
from timeline.truncation import GRACE_OF_SILENCES

SORTED = ClusteringSettings(sort_columns=("v",))
COLUMNS = ("id", "p", "ts", "v", "_hoodie_commit_time", "_hoodie_commit_seqno")
INSERT = WriteOperation.INSERT
_KEEP_APART = replace(SMALL, sizes=replace(SMALL.sizes, small_file_bytes=0))


def rows(ids: str, *, p: str = "x", ts: int = 1) -> list[dict[str, Any]]:
    return [{"id": one, "p": p, "ts": ts, "v": 100 - ord(one) + ts} for one in ids]


def small_files(
    *,
    table_type: TableType = TableType.COPY_ON_WRITE,
    storage: MemoryStorage | None = None,
    clock: StillClock | None = None,
) -> TableReader:
    """Two file groups in partition x, one in y."""
    table = new_table(storage, table_type=table_type, clock=clock)
    put(table, INSERT, rows("ab") + rows("yz", p="y"), files=_KEEP_APART)
    put(table, INSERT, rows("cd"), files=_KEEP_APART)
    return table


def schedule(table: TableReader, settings: ClusteringSettings = SORTED) -> Instant:
    planned = schedule_clustering(table.context, settings)
    assert planned is not None
    return planned


def execute(
    table: TableReader, planned: Instant, settings: ClusteringSettings = SORTED
) -> ClusteringResult | None:
    return execute_clustering(table.context, planned, settings, SMALL)


def cluster(table: TableReader, settings: ClusteringSettings = SORTED) -> ClusteringResult:
    result = execute(table, schedule(table, settings), settings)
    assert result is not None
    return result


def plan_path(planned: Instant) -> str:
    return timeline_path(f"{planned.requested_time}.clustering.requested")


def meanwhile(table: TableReader, planned: Instant, act: Callable[[], object]) -> Any:
    """Execute, and call ``act`` just before the first data file is created."""

    class Meddled(Behind):
        acted = False

        def create(self, path: str, data: bytes, **how: Any) -> None:
            if path.endswith(".parquet") and not self.acted:
                self.acted = True
                act()
            self.inner.create(path, data, **how)

    other = opened(table, storage=Meddled(table.context.ports.storage))
    return execute(other, planned)


@pytest.mark.parametrize("table_type", list(TableType))
def test_a_clustering_moves_rows_and_changes_none(table_type: TableType) -> None:
    table = small_files(table_type=table_type)
    upsert(table, rows("a", ts=2))
    before = rows_of(table, *COLUMNS)
    result = cluster(table)
    assert rows_of(table, *COLUMNS) == before
    assert (result.groups, result.file_groups_replaced, result.files_written) == (2, 3, 2)
    assert result.rows_written == 6
    assert leftovers(table) == []
    (first, second) = table.view.latest_slices()
    assert first.log_files + second.log_files == ()
    assert {one.base_instant_time for one in (first, second)} == {result.requested_time}


def test_the_rows_of_a_clustered_file_have_the_sort_order() -> None:
    table = small_files()
    cluster(table)
    stored = (
        table.current_state()
        .to_arrow(columns=["v"], filter=[("p", "=", "x")])
        .column("v")
        .to_pylist()
    )
    assert stored == sorted(stored)
    assert len(stored) == 4


def test_a_group_is_split_into_files_of_the_target_size() -> None:
    table = small_files()
    size = sum(one.size_bytes for one in table.view.latest_slices(["x"]))
    settings = SORTED.model_copy(
        update={"target_file_bytes": size // 2 + 1, "partitions_selected": ("x",)}
    )
    result = cluster(table, settings)
    assert (result.files_written, result.rows_written) == (2, 4)
    lists = [
        table.current_state().to_arrow(
            columns=["v"], filter=[("_hoodie_file_name", "=", one.base_file.name)]
        )
        for one in table.view.latest_slices(["x"])
        if one.base_file
    ]
    ranges = sorted((min(f.column("v").to_pylist()), max(f.column("v").to_pylist())) for f in lists)
    assert ranges[0][1] < ranges[1][0]


def test_a_clustering_completes_as_a_replacecommit_with_javas_metadata() -> None:
    table = small_files()
    replaced = {one.file_group for one in table.view.latest_slices()}
    result = cluster(table)
    done = table.context.active().find(result.requested_time)
    assert done is not None
    assert (done.action, done.completion_time) == (Action.REPLACECOMMIT, result.completion_time)
    metadata = table.context.commits.read(done)
    assert metadata.operation_type == "CLUSTER"
    assert metadata.replaced_file_groups() == {(g.partition_path, g.file_id) for g in replaced}
    assert {stat.prev_commit for stat in metadata.write_stats()} == {"null"}
    assert metadata.schema_json == table.context.snapshot().newest_schema_json
    commit_log = table.context.commit_log
    assert [slot.kind for slot in commit_log.between(0, commit_log.head())][-2:] == [
        SlotKind.PLAN,
        SlotKind.COMMIT,
    ]


@pytest.mark.spec("PLAN-1")
def test_a_plan_is_in_the_form_of_java() -> None:
    table = small_files(table_type=TableType.MERGE_ON_READ)
    upsert(table, rows("a", ts=2))
    planned = schedule(table)
    path = plan_path(planned)
    storage = table.context.ports.storage
    requested = decode_requested_replace(storage.read(path), path=path)
    plan = requested.clustering_plan
    assert plan is not None
    assert (requested.operation_type, plan.preserve_hoodie_metadata) == ("CLUSTER", True)
    assert plan.strategy is not None
    assert plan.strategy.strategy_class_name == (
        "org.apache.hudi.client.clustering.run.strategy.SparkSortAndSizeExecutionStrategy"
    )
    assert plan.strategy.strategy_params == {
        "hoodie.clustering.plan.strategy.sort.columns": "v",
        "hoodie.layout.optimize.strategy": "LINEAR",
    }
    first = plan.input_groups[0]
    assert {one.partition_path for one in first.slices} == {"x"}
    logged = next(one for one in first.slices if one.delta_file_paths)
    newest = next(one for one in table.view.latest_slices() if one.log_files)
    assert newest.base_file is not None
    assert logged.data_file_path == storage.locate(newest.base_file.path)
    assert logged.delta_file_paths == (storage.locate(newest.log_files[0].path),)
    assert first.metrics["TOTAL_LOG_FILES"] == 1.0


def test_a_table_without_sort_columns_only_gets_bigger_files() -> None:
    table = small_files()
    before = rows_of(table, *COLUMNS)
    groups = plan_clustering(table.context, table.context.snapshot(), ClusteringSettings())
    assert [len(group.slices) for group in groups] == [2]  # y has one file: nothing to gain
    assert cluster(table, ClusteringSettings()).files_written == 1
    assert rows_of(table, *COLUMNS) == before


# concurrent writers


def test_a_group_that_a_writer_changed_meanwhile_is_left_out_and_the_rest_is_committed() -> None:
    table = small_files()
    planned = schedule(table)
    result = meanwhile(table, planned, lambda: upsert(opened(table), rows("a", ts=5)))
    assert (result.groups, result.groups_left_out) == (1, 1)
    newest = {one[0]: one[1] for one in rows_of(table, "id", "ts")}
    assert newest == {"a": 5, "b": 1, "c": 1, "d": 1, "y": 1, "z": 1}
    assert len([path for path in data_files(table) if planned.requested_time in path]) == 1
    assert leftovers(table) == []


def test_a_late_file_of_a_left_out_group_is_invisible() -> None:
    """A second executor that slept may create it after the result was committed."""
    table = small_files()
    planned = schedule(table)
    kept: dict[str, bytes] = {}
    storage = table.context.ports.storage

    class Keeping(Behind):
        def create(self, path: str, data: bytes, **how: Any) -> None:
            if path.endswith(".parquet") and "/" in path:
                kept[path] = data
                if path.startswith("x/"):
                    upsert(opened(table), rows("a", ts=5))
            self.inner.create(path, data, **how)

    execute(opened(table, storage=Keeping(storage)), planned)
    before = rows_of(table, *COLUMNS)
    late = next(path for path in kept if path.startswith("x/") and planned.requested_time in path)
    storage.create(late, kept[late])
    assert rows_of(opened(table), *COLUMNS) == before
    assert len(before) == 6


class Asleep:
    """An executor that sleeps beyond its claim in its first create, while ``act`` happens."""

    def __init__(self, act: Callable[[TableReader, Instant], object]) -> None:
        self.clock = StillClock()
        self.table = small_files(
            storage=MemoryStorage(ports=MemoryWorld(self.clock)), clock=self.clock
        )
        self.planned = schedule(self.table)
        self.act = act

    def run(self) -> None:
        asleep = self

        class Sleeping(Behind):
            slept = False

            def create(self, path: str, data: bytes, **how: Any) -> None:
                if path.endswith(".parquet") and not self.slept:
                    self.slept = True
                    asleep.clock.sleep_ms(BRISK.heartbeat.tolerated_ms + 1_000)
                    asleep.act(asleep.other(), asleep.planned)
                self.inner.create(path, data, **how)

        with pytest.raises(HeartbeatExpiredError):
            execute(self.other(Sleeping(self.table.context.ports.storage)), self.planned)

    def other(self, storage: Any = None) -> TableReader:
        return opened(self.table, storage=storage, clock=self.clock)

    def files(self) -> list[str]:
        return [path for path in data_files(self.table) if self.planned.requested_time in path]


@pytest.mark.spec("RB-10")
def test_a_resumed_executor_deletes_files_of_groups_that_another_result_left_out() -> None:
    def act(other: TableReader, planned: Instant) -> None:
        upsert(other, rows("a", ts=5))
        result = execute(other, planned)
        assert result is not None
        assert (result.groups, result.groups_left_out) == (1, 1)

    asleep = Asleep(act)
    asleep.run()
    assert [path.partition("/")[0] for path in asleep.files()] == ["y"]
    assert len(rows_of(asleep.other(), "id")) == 6


@pytest.mark.spec("RB-10")
def test_a_resumed_executor_deletes_all_files_of_a_cancelled_plan() -> None:
    asleep = Asleep(lambda other, planned: cancel_pending_plan(other.context, planned))
    asleep.run()
    assert asleep.files() == []
    assert leftovers(asleep.table) == []


def test_a_resumed_executor_leaves_its_files_to_the_next_executor() -> None:
    asleep = Asleep(lambda _other, _planned: None)
    asleep.run()
    assert len(asleep.files()) == 1
    assert execute(asleep.other(), asleep.planned) is not None
    assert len(rows_of(asleep.other(), "id")) == 6


@pytest.mark.spec("RB-10")
def test_a_plan_with_a_left_out_group_is_archived_when_no_executor_can_write_its_files() -> None:
    """Behind the archive nothing would hide the file of an executor that slept."""
    asleep = Asleep(lambda *_: None)
    table, planned = asleep.table, asleep.planned
    upsert(table, rows("a", ts=5))
    result = execute(asleep.other(), planned)
    assert result is not None
    assert result.groups_left_out == 1
    rules = ArchiveRules.from_properties(
        {
            "hoodie.clean.commits.retained": "1",
            "hoodie.keep.min.commits": "2",
            "hoodie.keep.max.commits": "4",
        }
    )
    for ts in range(6, 12):
        upsert(table, rows("a", ts=ts))
    clean(table.context, rules.cleaning)
    archive(table.context, rules)
    assert table.context.active().find(planned.requested_time) is not None
    asleep.clock.sleep_ms(GRACE_OF_SILENCES * BRISK.heartbeat.tolerated_ms + 1)
    archive(table.context, rules)
    assert table.context.active().find(planned.requested_time) is None


def test_a_plan_whose_groups_all_changed_is_cancelled() -> None:
    table = small_files()
    planned = schedule(table)
    everything = [*rows("ac"), *rows("y", p="y")]
    assert meanwhile(table, planned, lambda: upsert(opened(table), everything)) is None
    assert not any(planned.requested_time in path for path in data_files(table))
    assert leftovers(table) == []
    assert table.context.active().find(planned.requested_time) is None
    assert len(rows_of(table, "id")) == 6


def test_a_group_that_changed_before_is_not_even_read() -> None:
    table = small_files()
    planned = schedule(table)
    upsert(table, rows("a", ts=5))
    result = execute(table, planned)
    assert result is not None
    assert (result.groups, result.rows_written) == (1, 2)


class Cleaned(Behind):
    """A file that is about to be read is cleaned, and before it ``act`` happens."""

    def __init__(self, inner: Any, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self.act, self.gone = act, ""

    def open_input(self, path: str) -> Any:
        if not self.gone and path.startswith("x/"):
            self.gone = path
            self.act()
            self.inner.delete(path)
        return self.inner.open_input(path)


@pytest.mark.spec("CL-1")
def test_a_group_that_is_cleaned_during_its_read_is_left_out() -> None:
    table = small_files()
    planned = schedule(table)
    storage = Cleaned(
        table.context.ports.storage, lambda: upsert(opened(table), rows("abcd", ts=5))
    )
    result = execute(opened(table, storage=storage), planned)
    assert storage.gone
    assert result is not None
    assert (result.groups, result.groups_left_out) == (1, 1)
    newest = {one[0]: one[1] for one in rows_of(table, "id", "ts")}
    assert newest == {**dict.fromkeys("abcd", 5), "y": 1, "z": 1}


@pytest.mark.spec("CL-1")
def test_a_missing_file_of_an_unchanged_file_group_is_reported() -> None:
    table = small_files()
    planned = schedule(table)
    storage = Cleaned(table.context.ports.storage, lambda: None)
    with pytest.raises(MissingFileError):
        execute(opened(table, storage=storage), planned)
    assert table.context.active().find(planned.requested_time) is not None


@pytest.mark.parametrize("ends", ["completed", "cancelled"])
def test_files_cleaned_after_the_end_of_the_plan_raise_no_error(ends: str) -> None:
    table = small_files()
    planned = schedule(table)

    def end() -> None:
        if ends == "cancelled":
            cancel_pending_plan(table.context, planned)
        else:  # by an executor of an earlier release, which ignores the lease
            table.context.ports.storage.delete(heartbeat_path(planned.requested_time))
            assert execute(opened(table), planned) is not None

    storage = Cleaned(table.context.ports.storage, end)
    assert execute(opened(table, storage=storage), planned) is None
    left = [path for path in data_files(table) if planned.requested_time in path]
    assert (ends == "cancelled") is (left == [])


def test_an_overwrite_of_a_clustered_partition_wins() -> None:
    table = small_files()
    planned = schedule(table)
    meanwhile(
        table,
        planned,
        lambda: put(opened(table), WriteOperation.INSERT_OVERWRITE, rows("q", ts=9)),
    )
    assert [one for one in rows_of(table, "id", "p") if one[1] == "x"] == [("q", "x")]


def test_a_writer_that_began_before_is_retried_on_the_new_files() -> None:
    table = small_files()
    result = upsert(
        opened(table), rows("b", ts=8), lambda: cluster(table, SORTED), detect_early=False
    )
    assert result.attempts == 2
    assert ("b", 8) in rows_of(table, "id", "ts")
    assert len(rows_of(table, "id")) == 6


def test_a_log_written_meanwhile_is_not_lost() -> None:
    table = small_files(table_type=TableType.MERGE_ON_READ)
    planned = schedule(table)
    result = meanwhile(table, planned, lambda: upsert(opened(table), rows("a", ts=5)))
    assert result.groups_left_out == 1
    assert ("a", 5) in rows_of(table, "id", "ts")


def test_where_updates_are_rejected_the_writer_is_refused() -> None:
    table = small_files()
    planned = schedule(table)
    limits = replace(BRISK, clustering_updates=ClusteringUpdates.REJECT)
    with pytest.raises(ServiceConflictError, match="pending clustering"):
        upsert(opened(table, limits=limits), rows("a", ts=5))
    upsert(opened(table, limits=limits), rows("n"))  # a new key is no matter of it
    result = execute(table, planned)
    assert result is not None
    assert result.groups_left_out == 0


def test_a_clustering_may_yield_to_writers_that_only_began() -> None:
    table = small_files()
    planned = schedule(table)
    yielding = SORTED.model_copy(update={"yields_to_announced": True})
    results = []
    upsert(
        opened(table), rows("a", ts=5), lambda: results.append(execute(table, planned, yielding))
    )
    assert results[0] is not None
    assert (results[0].groups, results[0].groups_left_out) == (1, 1)
    assert ("a", 5) in rows_of(table, "id", "ts")


def test_a_schema_that_grew_meanwhile_stays_grown() -> None:
    table = small_files()
    planned = schedule(table)
    grown = [{**one, "more": 1} for one in rows("n", ts=3)]
    result = meanwhile(table, planned, lambda: put(opened(table), INSERT, grown, files=_KEEP_APART))
    assert result.groups_left_out == 0
    found = table.current_state().to_arrow()
    assert "more" in found.schema.names
    assert found.num_rows == 7


def test_keys_that_moved_are_found_again_by_a_global_index() -> None:
    table = small_files()
    cluster(table)
    lookup = LookupRules(whole_table=True)
    moved = [*rows("a", ts=4), *rows("z", p="y", ts=4)]
    result = upsert(table, moved, lookup=lookup)
    assert (result.rows_updated, result.rows_inserted) == (2, 0)
    assert len(rows_of(table, "id")) == 6


# executors


@pytest.mark.spec("CMP-3")
def test_a_second_executor_leaves_a_leased_plan() -> None:
    table = small_files()
    planned = schedule(table)
    lease = lease_plan(opened(table).context, planned)
    assert lease is not None
    assert execute(table, planned) is None
    assert heard(table, "service.claimed_elsewhere")
    lease.stop()
    assert execute(table, planned) is not None


def test_an_executor_that_died_leaves_files_that_are_adopted() -> None:
    table = small_files()
    planned = schedule(table)

    class Dying(Behind):
        def create(self, path: str, data: bytes, **how: Any) -> None:
            if "/slots/" in path:
                raise KeyboardInterrupt
            self.inner.create(path, data, **how)

    with pytest.raises(KeyboardInterrupt):
        execute(opened(table, storage=Dying(table.context.ports.storage)), planned)
    made = [path for path in data_files(table) if planned.requested_time in path]
    assert len(made) == 2
    before = rows_of(table, *COLUMNS)
    result = execute(table, planned)
    assert result is not None
    assert [path for path in data_files(table) if planned.requested_time in path] == made
    assert rows_of(table, *COLUMNS) == before
    assert leftovers(table) == []


def test_files_of_an_executor_that_sorted_otherwise_are_swept() -> None:
    """Java's plans name no curve: two workers may have different settings."""
    table = small_files()
    planned = schedule(table, ClusteringSettings())
    storage = table.context.ports.storage
    stray = f"x/stray-0_0-0-0_{planned.requested_time}.parquet"
    storage.create(stray, b"half")
    execute(table, planned)
    assert stray not in data_files(table)


def test_a_plan_without_an_executor_expires() -> None:
    table = small_files()
    planned = schedule(table)
    expiring = SORTED.model_copy(update={"expires": True, "expiration_mins": 30})
    clock = StillClock(SystemClock().now_ms() + 20 * 60_000)
    later = opened(table, clock=clock).context
    service = ClusteringService(settings=expiring, files=SMALL)
    lease = lease_plan(table.context, planned)
    assert lease is not None
    service.run_once(later)
    clock.wall += 20 * 60_000
    service.run_once(later)
    assert table.context.active().pending == (planned,)  # another worker executes it
    lease.stop()
    service.run_once(later)
    assert table.context.active().pending == ()


def test_a_cancelled_plan_is_unknown() -> None:
    table = small_files()
    planned = schedule(table)
    assert cancel_pending_plan(table.context, planned) is not None
    with pytest.raises(InstantNotFoundError):
        execute(table, planned)


def test_an_executor_whose_plan_was_cancelled_deletes_its_files() -> None:
    table = small_files()
    planned = schedule(table)
    assert meanwhile(table, planned, lambda: cancel_pending_plan(table.context, planned)) is None
    assert not any(planned.requested_time in path for path in data_files(table))
    assert len(rows_of(table, "id")) == 6


@pytest.mark.spec("PLAN-3")
def test_no_slice_is_planned_twice() -> None:
    table = small_files()
    schedule(table)
    assert schedule_clustering(table.context, SORTED) is None
    done = small_files()
    cluster(done)
    assert schedule_clustering(done.context, SORTED) is None
    other = ClusteringSettings(sort_columns=("v", "id"), curve=Curve.HILBERT)
    assert schedule_clustering(done.context, other) is not None


def test_commit_times_are_new_by_the_option_of_the_plan() -> None:
    table = small_files()
    planned = schedule(table)
    change_plan(table, planned, lambda plan: replace(plan, preserve_hoodie_metadata=False))
    execute(table, planned)
    times = {one[0] for one in rows_of(table, "_hoodie_commit_time")}
    assert times == {planned.requested_time}
    numbers = {one[0] for one in rows_of(table, "_hoodie_commit_seqno")}
    assert len(numbers) == 6


# hostile plans, wrong tables


def change_plan(
    table: TableReader, planned: Instant, change: Callable[[ClusteringPlan], ClusteringPlan]
) -> None:
    storage, path = table.context.ports.storage, plan_path(planned)
    requested = decode_requested_replace(storage.read(path), path=path)
    assert requested.clustering_plan is not None
    changed = replace(requested, clustering_plan=change(requested.clustering_plan))
    storage.write(path, encode_requested_replace(changed))


def slice_with(**fields: Any) -> Callable[[ClusteringPlan], ClusteringPlan]:
    def change(plan: ClusteringPlan) -> ClusteringPlan:
        group = plan.input_groups[0]
        slices = (replace(group.slices[0], **fields), *group.slices[1:])
        return replace(plan, input_groups=(replace(group, slices=slices), *plan.input_groups[1:]))

    return change


def group_with(**fields: Any) -> Callable[[ClusteringPlan], ClusteringPlan]:
    def change(plan: ClusteringPlan) -> ClusteringPlan:
        group = replace(plan.input_groups[0], **fields)
        return replace(plan, input_groups=(group, *plan.input_groups[1:]))

    return change


_TIME = "20260101000000000"


@pytest.mark.parametrize(
    "change",
    [
        slice_with(data_file_path="file:/etc/passwd"),
        slice_with(data_file_path=f"memory:/x/../../f_0-0-0_{_TIME}.parquet"),
        slice_with(data_file_path=f"/elsewhere/f_0-0-0_{_TIME}.parquet"),
        slice_with(data_file_path="x/"),
        slice_with(data_file_path=None),
        slice_with(partition_path="../x"),
        slice_with(partition_path=".hoodie"),
        slice_with(file_id="another"),
        slice_with(delta_file_paths=("x/.hoodie.properties",)),
        slice_with(delta_file_paths=(f"/t/x/.f_{_TIME}.log.1_0-0-0.cdc",)),
        group_with(slices=()),
        group_with(num_output_file_groups=0),
        group_with(num_output_file_groups=2_000_000_000),
        lambda plan: replace(plan, input_groups=(*plan.input_groups, plan.input_groups[0])),
        lambda plan: replace(plan, input_groups=(_both(plan),)),
        lambda plan: replace(
            plan,
            strategy=replace(
                plan.strategy, strategy_params={"hoodie.layout.optimize.strategy": "peano"}
            ),
        ),
    ],
)
def test_a_hostile_plan_is_refused_before_anything_is_read_or_deleted(
    change: Callable[[ClusteringPlan], ClusteringPlan],
) -> None:
    table = small_files()
    planned = schedule(table)
    change_plan(table, planned, change)
    files = data_files(table)
    with pytest.raises((CorruptTableError, MalformedNameError)):
        execute(table, planned)
    assert data_files(table) == files
    assert f"{planned.requested_time}.clustering.inflight" not in table.context.active().file_names


def _both(plan: ClusteringPlan) -> ClusteringGroup:
    """One group of two partitions."""
    first, second = plan.input_groups
    return replace(first, slices=(*first.slices, *second.slices))


def test_a_plan_of_a_table_that_was_moved_is_carried_out() -> None:
    table = small_files()
    planned = schedule(table)
    base = table.context.ports.storage.base_uri

    def moved(plan: ClusteringPlan) -> ClusteringPlan:
        groups = [
            replace(
                group,
                slices=tuple(
                    replace(
                        one,
                        data_file_path=(one.data_file_path or "").replace(base, "s3://old/place"),
                    )
                    for one in group.slices
                ),
            )
            for group in plan.input_groups
        ]
        return replace(plan, input_groups=tuple(groups))

    change_plan(table, planned, moved)
    result = execute(table, planned)
    assert result is not None
    assert result.groups_left_out == 0


def test_a_plan_for_something_else_is_left_to_java() -> None:
    table = small_files()
    planned = schedule(table)
    name = "org.apache.hudi.client.clustering.run.strategy.SparkConsistentBucketClusteringExecutionStrategy"
    change_plan(
        table,
        planned,
        lambda plan: replace(plan, strategy=replace(plan.strategy, strategy_class_name=name)),
    )
    with pytest.raises(UnsupportedTableError, match="consistent"):
        execute(table, planned)


@pytest.mark.parametrize("column", ["nope", "ts.deeper"])
def test_a_missing_sort_column_is_refused_and_no_plan_is_made(column: str) -> None:
    table = small_files()
    settings = ClusteringSettings(sort_columns=(column,))
    with pytest.raises(InvalidInputError, match=column):
        schedule_clustering(table.context, settings)
    assert table.context.active().pending == ()


@pytest.mark.parametrize("engine", list(BucketEngine))
def test_a_bucket_index_is_refused_by_name(engine: BucketEngine) -> None:
    table = new_table(ordering=())
    buckets = BucketRules(engine=engine, buckets=2, hash_fields=("id",))
    put(table, INSERT, rows("abcd"), buckets=buckets)
    with pytest.raises(UnsupportedTableError, match="bucket index"):
        schedule_clustering(table.context, SORTED)


def test_a_plan_that_is_started_after_its_cancel_does_not_stay_pending() -> None:
    """Its executor refreshed, slept while others cancelled, created its inflight file, and died."""
    table = small_files()
    planned = schedule(table)
    cancel_pending_plan(table.context, planned)
    storage = table.context.ports.storage
    storage.create(timeline_path(f"{planned.requested_time}.clustering.inflight"), b"")
    late = f"x/late-0_0-0-0_{planned.requested_time}.parquet"
    storage.create(late, b"late")
    assert len(table.context.active().pending) == 1
    remove_stray_files(table.context)
    assert table.context.active().pending == ()
    assert late not in data_files(table)
    assert len(rows_of(table, "id")) == 6
