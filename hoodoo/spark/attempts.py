"""Wait for attempts of tasks that run on after Spark has ended their job."""

from __future__ import annotations

import time
from typing import Any, Final

from timeline.errors import UnavailableError

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
                    "committed; write again, and look at the executors if it repeats: "
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
