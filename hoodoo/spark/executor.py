"""
Services over Spark: each file group's work in a task of the cluster.

The same functions as the local executor runs, over ports that each task makes for itself;
planning, claiming and publishing stay with the driver (PUB-2: when the job has ended, no
task of it writes any more).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from hoodoo.spark.carried import TaskFailedError, error_from_spark
from hoodoo.spark.tasks import StorageAddress
from timeline.errors import HoodooError, InternalError
from timeline.machine import NullEvents, SystemClock, SystemIds, ThreadExecutor
from timeline.ports.executor import Executor, Ticker
from timeline.ports.world import World

__all__ = ["SparkExecutor"]

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
    """

    spark: Any
    address: StorageAddress
    local: Executor

    def map(self, work: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        """As the port."""
        return self.local.map(work, tasks)

    def every(self, interval_ms: int, work: Callable[[], None]) -> Ticker:
        """As the port."""
        return self.local.every(interval_ms, work)

    def spread(self, work: Callable[[World, Task], Result], tasks: Sequence[Task]) -> list[Result]:
        """
        Run ``work`` on every task, each with ports of its own, and return the results in order.

        Raises:
            HoodooError: What a task raised.
        """
        if not tasks:
            return []
        run = _Run(work, self.address)
        try:
            sent = self.spark.sparkContext.parallelize(list(tasks), len(tasks))
            found: list[Result] = sent.map(run).collect()
        except Exception as error:
            carried = error_from_spark(error)
            if carried is None:
                raise
            raise carried from error
        return found


@dataclass(frozen=True, slots=True)
class _Run:
    """What travels to the cluster."""

    work: Callable[[World, Any], Any]
    address: StorageAddress

    def __call__(self, task: Any) -> Any:
        world = World(
            storage=self.address.open(),
            clock=SystemClock(),
            ids=SystemIds(""),
            events=NullEvents(),
            executor=ThreadExecutor(1),
            lock=_NoLock(),
        )
        try:
            return self.work(world, task)
        except HoodooError as error:
            raise TaskFailedError(error) from error


class _NoLock:
    """A task writes files; it never publishes."""

    provider = "none"
    identity = "none"

    def acquire(self, purpose: str) -> NoReturn:
        """As the port."""
        raise InternalError(f"a task on the cluster asked for the lock: {purpose}", kind="task")

    def close(self) -> None:
        """As the port."""
