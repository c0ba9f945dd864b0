"""
The second process of the suite: takes the lock as its command line says.

Run as ``python -m lockproviders.testing.contender``; only processes can test the exclusion between
processes. Arguments: a Python file and the name of a function in it, ``(folder) -> LockClient``, a
folder, and the task.
"""

from __future__ import annotations

import importlib.util
import operator
import sys
from collections.abc import Callable
from pathlib import Path

from lockproviders.acquire import LockPorts, ProviderLock, WaitBudget
from lockproviders.client import LockClient
from timeline.errors import InvalidInputError, UnavailableError
from timeline.system import NullEvents, SystemClock, SystemIds, ThreadExecutor

COUNTER = "counter.txt"
HELD = "held.txt"
READY = "ready"  # one file per process
GO = "go.txt"
HOLD_AT_MOST_MS = 60_000
PATIENCE_MS = 120_000  # bounds a test that hangs, not how fast a provider is


def build_lock_over(client: LockClient, *, deadline_ms: int = PATIENCE_MS) -> ProviderLock:
    """Build a lock over a client with this machine's ports and fast polling."""
    budget = WaitBudget(
        deadline_ms=deadline_ms,
        try_ms=deadline_ms,
        retries=0,
        pause_ms=0,
        hold_budget_ms=0,
        poll_first_ms=1,
        poll_max_ms=20,
    )
    ports = LockPorts(
        clock=SystemClock(), ids=SystemIds(), events=NullEvents(), executor=ThreadExecutor()
    )
    return ProviderLock("under_test", client, budget=budget, ports=ports)


def count_under(lock: ProviderLock, folder: Path, rounds: int) -> list[int | None]:
    """
    Add one to a counter file ``rounds`` times, with separate read and write; return the tokens.

    Only exclusion makes the sum right: the pause between read and write lets others interfere.
    """
    clock = SystemClock()
    counter = folder / COUNTER
    tokens = []
    for _ in range(rounds):
        with lock.acquire("count") as lease:
            tokens.append(lease.fencing_token)
            seen = int(counter.read_text(encoding="ascii")) if counter.exists() else 0
            clock.sleep_ms(1)
            lease.assert_held()
            counter.write_text(str(seen + 1), encoding="ascii")
    return tokens


def wait_for(condition: Callable[[], bool], *, seconds_max: float = 120.0) -> None:
    """
    Poll until a condition holds.

    Raises:
        UnavailableError: It did not hold within ``seconds_max``.
    """
    clock = SystemClock()
    end_ms = clock.monotonic_ms() + int(seconds_max * 1000)
    while not condition():
        if clock.monotonic_ms() >= end_ms:
            raise UnavailableError(
                f"the other process did not answer within {seconds_max} s; try again on an idle "
                "host"
            )
        clock.sleep_ms(2)


def main(arguments: list[str]) -> None:
    """Run ``FILE FUNCTION FOLDER count ROUNDS`` or ``FILE FUNCTION FOLDER hold``."""
    file, function, folder_text, task, *rest = arguments
    folder = Path(folder_text)
    lock = build_lock_over(_function_of(Path(file), function)(folder))
    if task == "count":
        # All start together; otherwise the slow start of a process would keep them apart.
        (folder / f"{READY}-{SystemIds().identity().pid}").touch()
        wait_for((folder / GO).exists)
        count_under(lock, folder, int(rest[0]))
        return
    with lock.acquire("hold until killed"):
        (folder / HELD).write_text("held", encoding="ascii")
        SystemClock().sleep_ms(HOLD_AT_MOST_MS)


def _function_of(file: Path, name: str) -> Callable[[Path], LockClient]:
    """Load the function that a test's command line names, never a table (SEC4)."""
    spec = importlib.util.spec_from_file_location("lock_under_test", file)
    if spec is None or spec.loader is None:
        raise InvalidInputError(
            f"there is no Python file of this name; correct the path: {file}", path=str(file)
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    found: Callable[[Path], LockClient] = operator.attrgetter(name)(module)
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
