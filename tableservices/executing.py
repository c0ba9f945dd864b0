"""What all who carry out a plan do: read it, show that it is begun, tell what was made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import TypeVar

from timeline.context import TableContext
from timeline.errors import InstantNotFoundError, StorageUnavailableError, TableReplacedError
from timeline.model.commit_metadata import SCHEMA_KEY, CommitMetadata, WriteStat
from timeline.model.filenames import pending_file_names
from timeline.model.instant import Instant
from timeline.ports.executor import SpreadingExecutor
from timeline.ports.storage import AmbiguousWriteError, ObjectExistsError, ObjectMissingError
from timeline.ports.world import World

__all__ = ["commit_metadata", "make_inflight", "on_file_groups", "read_requested", "spreads"]


def read_requested(context: TableContext, planned: Instant) -> tuple[bytes, str]:
    """
    The requested file of a plan, and its path for errors. Outside: 1 get.

    Raises:
        InstantNotFoundError: There is no such plan any more.
    """
    path = context.instant_path(pending_file_names(planned.action, planned.requested_time)[-1])
    try:
        return context.world.storage.read(path), path
    except ObjectMissingError:
        raise InstantNotFoundError(
            f"there is no such plan any more: {planned}",
            kind="plan_unknown",
            requested_time=planned.requested_time,
        ) from None


def make_inflight(context: TableContext, planned: Instant) -> bool:
    """
    Show that the plan is carried out; whether somebody had begun before. Outside: 1 create, 1 get.

    Raises:
        StorageUnavailableError: The storage does not answer.
        TableReplacedError: The table was dropped, and perhaps another one made: nothing more is
            written there, and what shows the plan is gone again (SLOT-10).
    """
    path = context.instant_path(pending_file_names(planned.action, planned.requested_time)[0])
    try:
        context.world.storage.create(path, b"")
    except ObjectExistsError:
        return True
    except AmbiguousWriteError as error:
        raise StorageUnavailableError(
            f"the storage did not answer; run the service again: {path}", path=path
        ) from error
    try:
        context.chain.assert_same_table()
    except TableReplacedError:
        context.world.storage.delete(path)
        raise
    return False


Task = TypeVar("Task")
Result = TypeVar("Result")


def spreads(world: World) -> bool:
    """Whether work on file groups is sent elsewhere, so that it costs this process no memory."""
    return isinstance(world.executor, SpreadingExecutor)


def on_file_groups(
    world: World, work: Callable[[World, Task], Result], tasks: Sequence[Task]
) -> list[Result]:
    """
    Run a function of the ports on one task for each file group; results in task order.

    On the executor's threads, each told as an event (``service.progress``), or wherever a
    ``SpreadingExecutor`` sends it.
    """
    if isinstance(world.executor, SpreadingExecutor):
        return world.executor.spread(work, tasks)
    numbers = count(1)

    def told(task: Task) -> Result:
        result = work(world, task)
        world.events.emit("service.progress", done=next(numbers), of=len(tasks))
        return result

    return world.executor.map(told, tasks)


def commit_metadata(
    context: TableContext, operation: str, stats: Sequence[WriteStat], avro_json: str | None
) -> CommitMetadata:
    """
    The completed file of a compaction, also of logs.

    Args:
        context: The table.
        operation: Hudi's name of it.
        stats: What was written.
        avro_json: The table's schema.
    """
    by_partition: dict[str, list[WriteStat]] = {}
    for stat in stats:
        by_partition.setdefault(stat.partition_path or "", []).append(stat)
    extra = context.world.ids.identity().as_metadata
    if avro_json is not None:
        extra[SCHEMA_KEY] = avro_json
    return CommitMetadata(
        partition_to_write_stats={path: tuple(by_partition[path]) for path in sorted(by_partition)},
        operation_type=operation,
        extra_metadata=extra,
        compacted=True,
    )
