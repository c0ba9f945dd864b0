"""A table in memory that grows by one-line commits, on a machine made of plain values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from filegroups.reading.scan import view_of
from filegroups.schema.new_table import new_table_properties
from tests.unit.timeline.memory import MemoryStorage, MemoryWorld
from timeline.codecs.instant_avro import encode_savepoint
from timeline.commit.begin import StartedWrite, begin, make_inflight
from timeline.commit.commit import CommittedWrite, commit_write
from timeline.commit.commit_lock import BaseState, PendingCommit
from timeline.commit.markers import create_marker
from timeline.context import TableContext, TableLimits
from timeline.model.commit_metadata import CommitMetadata, FileGroupId, WriteStat, write_set_of
from timeline.model.file_names import PARTITION_METADATA, IOType
from timeline.model.instant import Action
from timeline.model.plans import SavepointMetadata, SavepointPartitionMetadata
from timeline.ports.ports import Ports, ProcessIdentity
from timeline.properties.properties_file import create_properties, load_config, update_properties


class ManualClock:
    def __init__(self) -> None:
        self.time_ms = 0
        self.sleeps: list[int] = []

    def now_ms(self) -> int:
        return 1_700_000_000_000 + self.time_ms

    def monotonic_ms(self) -> int:
        return self.time_ms

    def sleep_ms(self, duration_ms: int) -> None:
        self.sleeps.append(duration_ms)
        self.time_ms += duration_ms


class PlainIds:
    def __init__(self) -> None:
        self.drawn = 0

    def uuid(self) -> str:
        return "00000000-0000-4000-8000-000000000000"

    def nonce(self) -> str:
        self.drawn += 1
        return f"{self.drawn:032x}"

    def jitter(self) -> float:
        return 0.5

    def identity(self) -> ProcessIdentity:
        return ProcessIdentity(host="here", pid=41, writer_id="w1", application="loader")


class KeptEvents:
    def __init__(self) -> None:
        self.kept: list[tuple[str, dict[str, Any]]] = []

    def emit(self, name: str, /, **fields: Any) -> None:
        self.kept.append((name, fields))

    def names(self) -> list[str]:
        return [name for name, _ in self.kept]


class InlineExecutor:
    """Runs tasks at once; repetitions never run by themselves."""

    def map(self, work: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        return [work(task) for task in tasks]

    def every(self, interval_ms: int, work: Callable[[], None]) -> InlineExecutor:
        return self

    def stop(self) -> None:
        pass


class PlainLease:
    fencing_token = None
    owner = "loader"
    is_shared = False

    def remaining_ms(self) -> int | None:
        return None

    def has_time_for_request(self) -> bool:
        return True

    def assert_held(self) -> None:
        pass

    def release(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


class PlainLock:
    """No other writer exists; ``on_acquire`` lets a test act just before the commit section."""

    def __init__(self) -> None:
        self.on_acquire: Callable[[], None] = lambda: None

    def acquire(self, purpose: str) -> PlainLease:
        if "clean" in purpose:
            act, self.on_acquire = self.on_acquire, lambda: None
            act()
        return PlainLease()

    def close(self) -> None:
        pass


class Bench:
    """One table and the verbs of a writer."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.events = KeptEvents()
        self.lock = PlainLock()
        self.storage = MemoryStorage(ports=MemoryWorld(self.clock))
        properties = new_table_properties("t", record_key_fields=("id",))
        create_properties(self.storage, properties, now="now")
        self.context = self.open(self.storage)

    def open(self, storage: Any) -> TableContext:
        """Another process's handle, perhaps over a storage that fails."""
        ports = Ports(
            storage=storage,
            clock=self.clock,
            ids=PlainIds(),
            events=self.events,
            executor=InlineExecutor(),
            lock=self.lock,
        )
        return TableContext.of(ports, load_config(storage), TableLimits())

    def begin(self, action: Action = Action.COMMIT) -> StartedWrite:
        self.clock.time_ms += 1_000
        begun = begin(self.context, action)
        make_inflight(self.context, begun, CommitMetadata())
        return begun

    def finish(
        self,
        begun: StartedWrite,
        file_ids: Sequence[str],
        *,
        partition: str = "p",
        replaces: Sequence[str] = (),
    ) -> str:
        """Write one base file per file group and commit; returns the requested time."""
        if self.storage.stat(f"{partition}/{PARTITION_METADATA}") is None:
            self.storage.create(f"{partition}/{PARTITION_METADATA}", b"")
        view = view_of(self.context, begun.snapshot)
        stats = []
        for file_id in file_ids:
            before = view.latest_slice(FileGroupId(partition, file_id))
            name = f"{file_id}_0-0-0_{begun.requested_time}.parquet"
            create_marker(self.storage, begun.requested_time, partition, name, IOType.CREATE)
            self.storage.create(f"{partition}/{name}", b"data")
            stat = WriteStat(
                file_id=file_id,
                path=f"{partition}/{name}",
                partition_path=partition,
                file_size_in_bytes=4,
            )
            if before is not None:
                stat = replace(stat, prev_commit=before.base_instant_time)
            stats.append(stat)
        metadata = CommitMetadata(
            partition_to_write_stats={partition: tuple(stats)} if stats else {},
            partition_to_replace_file_ids={partition: tuple(replaces)} if replaces else None,
        )
        pending_commit = PendingCommit(write_set=write_set_of(metadata), metadata=metadata)
        outcome = commit_write(self.context, begun, pending_commit, BaseState.by(begun.snapshot))
        assert isinstance(outcome, CommittedWrite), outcome
        begun.heartbeat.stop()
        self.storage.delete_folder(f".hoodie/.temp/{begun.requested_time}")
        return begun.requested_time

    def commit(self, *file_ids: str, partition: str = "p") -> str:
        return self.finish(self.begin(), file_ids, partition=partition)

    def commits(self, count: int, file_id: str = "f1") -> list[str]:
        return [self.commit(file_id) for _ in range(count)]

    def times_left(self, file_id: str = "f1", partition: str = "p") -> list[str]:
        """Requested times of the base files that exist, ascending."""
        return [
            name.rpartition("_")[2].removesuffix(".parquet")
            for name in self.storage.names(partition)
            if name.startswith(f"{file_id}_")
        ]

    def savepoint(self, time: str, *names: str, partition: str = "p") -> str:
        """Protect files as Java does, now; returns the path of the savepoint."""
        newest = self.context.active().newest_time
        metadata = SavepointMetadata(
            savepointed_by="me",
            savepointed_at=1,
            partition_metadata={
                partition: SavepointPartitionMetadata(
                    partition_path=partition, savepoint_data_file=names
                )
            },
        )
        path = f".hoodie/timeline/{time}_{int(newest or 0) + 1}.savepoint"
        self.storage.create(path, encode_savepoint(metadata))
        return path

    def set_property(self, key: str, value: str) -> None:
        """Change the table's properties as another engine would."""
        update_properties(self.storage, {key: value}, now="now")

    def timeline_names(self, suffix: str) -> list[str]:
        return [n for n in self.storage.names(".hoodie/timeline") if n.endswith(suffix)]
