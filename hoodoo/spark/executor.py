"""Run table services on Spark, with one task for each file group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from hoodoo.spark.attempts import TaskAttempts
from hoodoo.spark.error_transport import TaskFailedError, error_from_spark
from hoodoo.spark.options import storage_properties
from hoodoo.spark.tasks import StorageAddress
from timeline.errors import HoodooError, InternalError
from timeline.ports.ports import Executor, LockSharing, Ports, Ticker
from timeline.system import NullEvents, SystemClock, SystemIds, ThreadExecutor, process_zone

# ---- Services over Spark: each file group's work in a task of the cluster
# Tasks run the same functions as the local executor, over ports that each task makes. The driver
# plans, takes executor leases and commits (PUB-2: after a job ends, none of its tasks writes).

Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkExecutor:
    """
    Run work on file groups in the cluster and all other work in this process.

    Args:
        spark: A classic session; a Spark Connect client cannot send functions.
        address: The storage of the table.
        local: The executor of this process.
        tasks_max: Number of tasks that run at a time; None for all at once.
        local_bytes_max: See ``ClusterExecutor``.
    """

    spark: Any
    address: StorageAddress
    local: Executor
    tasks_max: int | None = None
    local_bytes_max: int = 0

    def map(self, work: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        """See ``Executor``."""
        return self.local.map(work, tasks)

    def concurrently(self, calls: Sequence[Callable[[], Result]]) -> list[Result]:
        """See ``Executor``."""
        return self.local.concurrently(calls)

    def every(self, interval_ms: int, work: Callable[[], None]) -> Ticker:
        """See ``Executor``."""
        return self.local.every(interval_ms, work)

    def map_on_cluster(
        self, work: Callable[[Ports, Task], Result], tasks: Sequence[Task]
    ) -> list[Result]:
        """
        Run ``work`` on every task, each with its own ports, and return the results in order.

        Raises:
            HoodooError: A task raised it.
        """
        if not tasks:
            return []
        run, attempts = _ClusterRun(work, self.address), TaskAttempts(self.spark)
        try:
            at_a_time = min(len(tasks), self.tasks_max or len(tasks))
            sent = self.spark.sparkContext.parallelize(list(tasks), at_a_time)
            found: list[Result] = sent.map(run).collect()
        except Exception as error:
            carried = error_from_spark(error)
            if carried is None:
                raise
            raise carried from error
        attempts.wait()
        return found


def spark_executor(
    spark: Any,
    ports: Ports,
    properties: Mapping[str, str],
    *,
    tasks_max: int | None = None,
    local_bytes_max: int = 0,
) -> SparkExecutor:
    """
    Return the executor of a table that works on file groups in a session's cluster.

    Args:
        spark: The session.
        ports: The table's ports in this process.
        properties: All properties of the table; tasks open its storage by them.
        tasks_max: Number of tasks that run at a time; None for all at once.
        local_bytes_max: See ``ClusterExecutor``.
    """
    address = StorageAddress(
        base_uri=ports.storage.base_uri, options=tuple(storage_properties(properties).items())
    )
    return SparkExecutor(
        spark=spark,
        address=address,
        local=ports.executor,
        tasks_max=tasks_max,
        local_bytes_max=local_bytes_max,
    )


@dataclass(frozen=True, slots=True)
class _ClusterRun:
    """The function that Spark sends to the cluster."""

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
    """The lock of a task: a task writes files and never commits."""

    provider = "none"
    identity = "none"
    is_fifo = True
    is_shareable = False

    def acquire(self, purpose: str) -> NoReturn:
        """Raise ``InternalError``, because a task never commits."""
        raise InternalError(
            f"a task on the cluster asked for the lock; report it: {purpose}", kind="task"
        )

    def acquire_while(
        self, _wanted: Callable[[], bool], purpose: str, _sharing: LockSharing = LockSharing.NO
    ) -> NoReturn:
        """Raise ``InternalError``, because a task never commits."""
        self.acquire(purpose)

    def close(self) -> None:
        """Do nothing."""
