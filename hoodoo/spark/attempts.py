"""
Attempts of tasks that still run after Spark has ended their job, or lost their executor.

The driver waits for those that Spark knows. A process that Spark has lost may still write. So each
attempt checks, after it has closed its files, whether the write still waits for them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final

from timeline.commit.markers import announced
from timeline.errors import UnavailableError
from timeline.model.commit_metadata import WriteStat
from timeline.model.file_names import heartbeat_path
from timeline.model.instant_time import InstantTime
from timeline.ports.ports import Storage

_ATTEMPTS_MS: Final = 120_000  # Spark kills the attempts that it does not need
_POLL_S: Final = 0.05


class TaskAttempts:
    """
    The attempts of the tasks that a write starts, until each has ended.

    Spark ends a job with the first attempt of each task that succeeds. A speculative attempt, or
    one of a stage that Spark repeated, may still write its file. After the commit it would be
    visible, so the driver waits for it (PUB-2).

    Args:
        spark: The session; its thread starts all jobs of the write.
    """

    def __init__(self, spark: Any) -> None:
        self._context = spark.sparkContext
        self._before = self._jobs()

    def wait(self, duration_ms: int = _ATTEMPTS_MS) -> None:
        """
        Wait until no attempt runs.

        Raises:
            UnavailableError: An attempt still runs after the time.
        """
        until = time.monotonic() + duration_ms / 1000
        while count := self._running():
            if time.monotonic() > until:
                raise UnavailableError(
                    "tasks of the write still run after Spark reported its end, so nothing was "
                    "committed; write again, and check the executors if it repeats: "
                    f"{count} after {duration_ms} ms",
                    kind="tasks_run_on",
                )
            time.sleep(_POLL_S)

    def _running(self) -> int:
        scala = self._context._jsc.sc()  # noqa: SLF001
        scala.listenerBus().waitUntilEmpty(_ATTEMPTS_MS)  # the tracker knows what has happened
        tracker = self._context.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in self._jobs() - self._before]
        stages = {stage for job in jobs if job is not None for stage in job.stageIds}
        found = [tracker.getStageInfo(stage) for stage in stages]
        return sum(one.numActiveTasks for one in found if one is not None)

    def _jobs(self) -> frozenset[int]:
        group = self._context.getLocalProperty("spark.jobGroup.id")
        return frozenset(self._context.statusTracker().getJobIdsForGroup(group))


def keep_if_awaited(
    storage: Storage, requested_time: InstantTime, stats: Iterable[WriteStat]
) -> None:
    """
    Delete the files of an attempt if its write no longer waits for them (PUB-2).

    The driver withdraws the markers of files that did not come before the commit. It removes the
    heartbeat after the commit or rollback. Outside: 1 stat, 1 list for each partition.

    Raises:
        UnavailableError: The files were deleted.
    """
    by_partition: dict[str, list[str]] = {}
    for stat in stats:
        by_partition.setdefault(stat.partition_path or "", []).extend(stat.paths)
    is_awaited = storage.stat(heartbeat_path(requested_time)) is not None
    for partition_path, paths in by_partition.items() if is_awaited else ():
        names = announced(storage, requested_time, partition_path)
        is_awaited &= all(path.rpartition("/")[2] in names for path in paths)
    if is_awaited:
        return
    for path in (path for paths in by_partition.values() for path in paths):
        storage.delete(path)
    raise UnavailableError(
        "an attempt of a task ended after its write, and deleted its files: another attempt wrote "
        f"the rows, or the write was rolled back: {requested_time}",
        kind="tasks_run_on",
        requested_time=requested_time,
    )
