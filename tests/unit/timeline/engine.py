"""A small table in memory, a second writer of it, and concurrent writes at chosen moments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from filegroups.files.bloom import BloomSettings
from filegroups.files.rewrite import FileGroupTask
from filegroups.index import LookupRules
from filegroups.keys.bucketing import BucketRules
from filegroups.keys.generators import infer_key_generator
from filegroups.keys.keys import KeySpec
from filegroups.schema.new_table import new_table_properties
from filegroups.table import TableReader, create_table_files, open_reader
from filegroups.writing.workload import LocalWorkload
from filegroups.writing.write import PreparedWrite, RetryState, _write_and_publish, action_of, write
from filegroups.writing.write_request import CommitResult, FileRules, RowRules, WriteRequest
from filegroups.writing.write_schema import schema_for
from lockproviders.registry import build_lock
from tests.unit.timeline.memory import MemoryStorage
from timeline.commit.begin import begin
from timeline.context import TableContext, TableLimits
from timeline.model.commit_metadata import MergeMode, TableType, WriteOperation
from timeline.model.merge_definition import MergeDefinition
from timeline.ports.ports import Ports, Storage, StorageCapabilities
from timeline.rules.retry import RetryBudget
from timeline.system import SystemClock, SystemIds, ThreadExecutor

Rows = list[dict[str, Any]]
SMALL = FileRules(bloom=BloomSettings(entries=50))
BRISK = TableLimits(retry=RetryBudget(pause_base_ms=0, pause_cap_ms=0))


class Heard:
    """Events that were emitted, by name."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def emit(self, name: str, /, **fields: Any) -> None:
        self.events.append((name, fields))

    def named(self, name: str) -> list[dict[str, Any]]:
        return [fields for emitted, fields in self.events if emitted == name]


class StillClock:
    """A clock that moves only by sleeping; a test may set it."""

    def __init__(self, now_ms: int = 1_790_000_000_000) -> None:
        self.wall = now_ms
        self.steady = 0

    def now_ms(self) -> int:
        return self.wall

    def monotonic_ms(self) -> int:
        return self.steady

    def sleep_ms(self, duration_ms: int) -> None:
        self.wall += duration_ms
        self.steady += duration_ms


class Behind:
    """A storage that passes calls on; subclasses replace single methods."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Far(Behind):
    """A high-latency storage."""

    @property
    def capabilities(self) -> StorageCapabilities:
        return replace(self.inner.capabilities, high_latency=True)


def wait_for(there: Callable[[], bool]) -> None:
    """Wait until a condition of another thread holds, without a guess of the time."""
    clock = SystemClock()
    for _ in range(6000):
        if there():
            return
        clock.sleep_ms(10)
    raise AssertionError("it did not come in a minute")


class Meddled:
    """A workload that runs one action before each write of its data files."""

    def __init__(
        self,
        inner: LocalWorkload,
        *acts: Callable[[], object],
        early: Callable[[], object] | None = None,
    ) -> None:
        self._inner = inner
        self._acts = list(acts)
        self._early = [early] if early else []
        self.rewritten: list[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def assign(self, buckets: Any, file_ids: Any) -> None:
        self._inner.assign(buckets, file_ids)
        if self._early:
            self._early.pop()()

    def rewrite(self, tasks: Sequence[FileGroupTask]) -> Any:
        self.rewritten.append([task.file_id for task in tasks])
        if self._acts:
            self._acts.pop(0)()
        return self._inner.rewrite(tasks)


def world_of(storage: Storage, *, application: str = "", clock: Any = None) -> Ports:
    """Return the system's ports around a storage."""
    used, events, ids = clock or SystemClock(), Heard(), SystemIds(application)
    executor = ThreadExecutor(2, events=events)
    lock = build_lock(
        {},
        storage=storage,
        clock=used,
        ids=ids,
        events=events,
        executor=executor,
        table_identity=storage.base_uri,
    )
    return Ports(storage=storage, clock=used, ids=ids, events=events, executor=executor, lock=lock)


def new_table(
    storage: Storage | None = None,
    *,
    version: int = 9,
    keys: tuple[str, ...] = ("id",),
    partitions: tuple[str, ...] = ("p",),
    ordering: tuple[str, ...] = ("ts",),
    hive_style: bool = False,
    url_encode: bool = False,
    limits: TableLimits = BRISK,
    clock: Any = None,
    table_type: TableType = TableType.COPY_ON_WRITE,
    stores_keys: bool = True,
) -> TableReader:
    """Create an empty table; copy-on-write and in memory by default."""
    used = storage or MemoryStorage()
    properties = new_table_properties(
        "t",
        table_type=table_type,
        table_version=version,
        record_key_fields=keys,
        partition_fields=partitions,
        merge=MergeDefinition(
            mode=MergeMode.EVENT_TIME_ORDERING if ordering else MergeMode.COMMIT_TIME_ORDERING,
            ordering_fields=ordering,
        ),
        hive_style=hive_style,
        url_encode=url_encode,
        populate_meta_fields=stores_keys,
    )
    return create_table_files(world_of(used, clock=clock), properties, limits)


def opened(
    table: TableReader,
    *,
    application: str = "other",
    storage: Any = None,
    limits: TableLimits = BRISK,
    clock: Any = None,
) -> TableReader:
    """Open the same table for another writer, perhaps through another storage."""
    used = storage or table.context.ports.storage
    return open_reader(world_of(used, application=application, clock=clock), limits)


def planned(
    table: TableReader,
    operation: WriteOperation,
    *,
    batch_id: str | None = None,
    files: FileRules = SMALL,
    delete_partitions: tuple[str, ...] = (),
    drop_found: bool = False,
    combine: bool | None = None,
    detect_early: bool = True,
    buckets: BucketRules | None = None,
    lookup: LookupRules | None = None,
) -> WriteRequest:
    """Return the request of one write on this table."""
    config = table.config
    ordering = config.ordering_fields if config.merge_mode is MergeMode.EVENT_TIME_ORDERING else ()
    upserts = operation in (WriteOperation.UPSERT, WriteOperation.DELETE)
    return WriteRequest(
        rules=RowRules(
            keys=KeySpec(
                record_key_fields=config.record_key_fields,
                partition_fields=config.partition_fields,
                key_generator=infer_key_generator(
                    len(config.record_key_fields), len(config.partition_fields)
                ),
                hive_style=config.hive_style_partitioning,
                url_encode=config.url_encode_partitioning,
                table_version=config.table_version,
                ordering_fields=ordering,
                stores_keys=config.populate_meta_fields,
            ),
            operation=operation,
            merge=MergeDefinition(mode=config.merge_mode, ordering_fields=ordering),
            ordering_fields=ordering,
            combine=upserts or drop_found if combine is None else combine,
            tags=upserts or drop_found,
            drop_found=drop_found,
            buckets=buckets,
            lookup=lookup or LookupRules(),
        ),
        files=files,
        detect_early=detect_early,
        batch_id=batch_id,
        delete_partitions=delete_partitions,
    )


def as_table(rows: Rows | pa.Table) -> pa.Table:
    return rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows)


def put(
    table: TableReader,
    operation: WriteOperation,
    rows: Rows | pa.Table,
    *acts: Callable[[], object],
    **options: Any,
) -> CommitResult:
    """Write rows; each act happens before the files of one attempt are written."""
    return put_watched(table, operation, rows, *acts, **options)[0]


def put_watched(
    table: TableReader,
    operation: WriteOperation,
    rows: Rows | pa.Table,
    *acts: Callable[[], object],
    early: Callable[[], object] | None = None,
    **options: Any,
) -> tuple[CommitResult, list[list[str]]]:
    """As ``put``; ``early`` runs before conflict detection; also return the rewritten file ids."""
    workload = Meddled(LocalWorkload(table.context.ports, as_table(rows)), *acts, early=early)
    result = write(table.context, planned(table, operation, **options), workload)
    return result, workload.rewritten


def upsert(
    table: TableReader, rows: Rows | pa.Table, *acts: Callable[[], object], **options: Any
) -> Any:
    return put(table, WriteOperation.UPSERT, rows, *acts, **options)


def begun(
    table: TableReader,
    operation: WriteOperation,
    rows: Rows | pa.Table,
    *,
    queued: bool = False,
    **options: Any,
) -> Callable[[], CommitResult]:
    """Begin a write now and assign its rows; the returned call commits it."""
    context = table.context
    plan = planned(table, operation, **options)
    workload = LocalWorkload(context.ports, as_table(rows))
    schema, before = schema_for(context, context.snapshot(), workload, plan)
    workload.prepare(plan.rules, schema)
    started = begin(context, action_of(context, operation))
    work = PreparedWrite(
        context=context,
        plan=plan,
        workload=workload,
        schema=schema,
        schema_before=before,
        queued=queued,
    )

    def finish() -> CommitResult:
        outcome = _write_and_publish(work, started, RetryState(started_ms=0))
        assert isinstance(outcome, CommitResult)
        return outcome

    return finish


def rows_of(table: TableReader, *columns: str, **how: Any) -> list[tuple[Any, ...]]:
    """Return the newest rows as sorted tuples, with all columns by default."""
    found = table.current_state().to_arrow(columns=columns or None, **how)
    return sorted(zip(*(column.to_pylist() for column in found.columns), strict=True))


def files_below(storage: Any, folder: str = "") -> list[str]:
    """Return every file below a folder of a table, sorted."""
    found: list[str] = []
    for entry in storage.list(folder):
        path = f"{folder}/{entry.name}" if folder else entry.name
        found.extend(files_below(storage, path) if entry.is_folder else [path])
    return sorted(found)


def data_files(table: TableReader) -> list[str]:
    return [path for path in files_below(table.context.ports.storage) if path.endswith(".parquet")]


def leftovers(table: TableReader) -> list[str]:
    """Return the markers, heartbeats and pending instants that no ended write may leave."""
    storage = table.context.ports.storage
    found = files_below(storage, ".hoodie/.temp") + files_below(storage, ".hoodie/.heartbeat")
    return found + [str(instant) for instant in table.context.active().pending]


def limited(**budget: int) -> TableLimits:
    """Limits with another retry budget."""
    return replace(BRISK, retry=replace(BRISK.retry, **budget))


def heard(context: TableContext | TableReader, name: str) -> list[dict[str, Any]]:
    """Return the events of one name that the context's ports emitted."""
    used = context.context if isinstance(context, TableReader) else context
    events = used.ports.events
    assert isinstance(events, Heard)
    return events.named(name)
