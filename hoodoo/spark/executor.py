"""Run table services on Spark: each file group in a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from hoodoo.spark.error_transport import TaskFailedError, error_from_spark
from hoodoo.spark.options import storage_properties
from hoodoo.spark.tasks import StorageAddress
from timeline.errors import HoodooError, InternalError
from timeline.ports.ports import Executor, LockSharing, Ports, Ticker
from timeline.system import NullEvents, SystemClock, SystemIds, ThreadExecutor, process_zone

# ---- Services over Spark: each file group's work in a task of the cluster
# The same functions as the local executor runs, over ports that each task makes for itself;
# planning, claiming and publishing stay with the driver (PUB-2: when the job has ended, no
# task of it writes any more).

Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkExecutor:
    """
    Work on file groups goes to the cluster, everything else runs here.

    Args:
        spark: A classic session; a Spark Connect client cannot send functions of its own.
        address: Where the table lies.
        local: This process's own executor.
        tasks_max: How many tasks run at a time; None for all at once.
    """

    spark: Any
    address: StorageAddress
    local: Executor
    tasks_max: int | None = None

    def map(self, work: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        """As the port."""
        return self.local.map(work, tasks)

    def concurrently(self, calls: Sequence[Callable[[], Result]]) -> list[Result]:
        """As the port."""
        return self.local.concurrently(calls)

    def every(self, interval_ms: int, work: Callable[[], None]) -> Ticker:
        """As the port."""
        return self.local.every(interval_ms, work)

    def map_on_cluster(
        self, work: Callable[[Ports, Task], Result], tasks: Sequence[Task]
    ) -> list[Result]:
        """
        Run ``work`` on every task, each with ports of its own, and return the results in order.

        Raises:
            HoodooError: What a task raised.
        """
        if not tasks:
            return []
        run = _ClusterRun(work, self.address)
        try:
            at_a_time = min(len(tasks), self.tasks_max or len(tasks))
            sent = self.spark.sparkContext.parallelize(list(tasks), at_a_time)
            found: list[Result] = sent.map(run).collect()
        except Exception as error:
            carried = error_from_spark(error)
            if carried is None:
                raise
            raise carried from error
        return found


def spark_executor(
    spark: Any, ports: Ports, properties: Mapping[str, str], *, tasks_max: int | None = None
) -> SparkExecutor:
    """
    The executor of a table whose work on file groups goes to a session's cluster.

    Args:
        spark: The session.
        ports: The table's ports in this process.
        properties: All of the table's; tasks reach its storage by them.
        tasks_max: As of ``SparkExecutor``.
    """
    address = StorageAddress(
        base_uri=ports.storage.base_uri, options=tuple(storage_properties(properties).items())
    )
    return SparkExecutor(spark=spark, address=address, local=ports.executor, tasks_max=tasks_max)


@dataclass(frozen=True, slots=True)
class _ClusterRun:
    """What travels to the cluster."""

    work: Callable[[Ports, Any], Any]
    address: StorageAddress

    def __call__(self, task: Any) -> Any:
        ports = Ports(
            storage=self.address.open(),
            clock=SystemClock(),
            ids=SystemIds(""),
            events=NullEvents(),
            executor=ThreadExecutor(1),
            lock=_NoLock(),
            zone=process_zone,
        )
        try:
            return self.work(ports, task)
        except HoodooError as error:
            raise TaskFailedError(error) from error


class _NoLock:
    """A task writes files; it never publishes."""

    provider = "none"
    identity = "none"
    is_fifo = True
    is_shareable = False

    def acquire(self, purpose: str) -> NoReturn:
        """As the port."""
        raise InternalError(f"a task on the cluster asked for the lock: {purpose}", kind="task")

    def acquire_while(
        self, _wanted: Callable[[], bool], purpose: str, _sharing: LockSharing = LockSharing.NO
    ) -> NoReturn:
        """As the port."""
        self.acquire(purpose)

    def close(self) -> None:
        """As the port."""
