"""The executor port: work side by side, and work again and again in the background."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from timeline.ports.world import World

__all__ = ["Executor", "SpreadingExecutor", "Ticker"]

Task = TypeVar("Task")
Result = TypeVar("Result")


class Ticker(Protocol):
    """A running background repetition."""

    def stop(self) -> None:
        """End it; returns when no further call can start. Calling twice is no error."""


class Executor(Protocol):
    """Runs the engine's own functions on this machine."""

    def map(self, work: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        """
        Run ``work`` on every task, in any order, and return the results in task order.

        The first exception is raised after all started tasks ended (PUB-2: no straggler).
        """

    def at_once(self, calls: Sequence[Callable[[], Result]]) -> list[Result]:
        """As ``map``, for calls that do nothing but wait for the storage."""

    def every(self, interval_ms: int, work: Callable[[], None]) -> Ticker:
        """Call ``work`` every ``interval_ms`` until stopped; its exceptions end in an event."""


@runtime_checkable
class SpreadingExecutor(Executor, Protocol):
    """
    An executor that also sends work to other processes, on a cluster.

    What it sends meets ports of the place where it runs, not the caller's: it is a plain
    function, and its tasks and results are values.
    """

    def spread(self, work: Callable[[World, Task], Result], tasks: Sequence[Task]) -> list[Result]:
        """
        As ``map``, elsewhere.

        Raises:
            HoodooError: What a task raised.
        """
