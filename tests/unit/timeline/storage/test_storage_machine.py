"""The small ports of the system: identity after a fork, thread pool, timers and logs."""

from __future__ import annotations

import logging
import os
import threading
import time

import pytest

from timeline import system as machine
from timeline.ports.ports import Value
from timeline.system import (
    FanOut,
    LoggingEvents,
    NullEvents,
    SystemClock,
    SystemIds,
    ThreadExecutor,
)


class Kept:
    """A sink that keeps names, and reports the first one."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.arrived = threading.Event()

    def emit(self, name: str, /, **fields: Value) -> None:
        self.names.append(f"{name} {fields}")
        self.arrived.set()


class Broken:
    """A sink that raises, against its contract."""

    def emit(self, name: str, /, **fields: Value) -> None:
        raise RuntimeError(name)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # threads of other tests
def test_a_forked_child_has_an_identity_of_its_own() -> None:
    ids = SystemIds("app")
    own = ids.identity()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            seen = ids.identity()
            identity_text = f"{seen.pid == os.getpid()} {seen.writer_id} {seen.application}"
            os.write(writer, identity_text.encode())
        finally:
            os._exit(0)  # the child must never run other tests
    os.waitpid(child, 0)
    answer = os.read(reader, 200).decode().split()
    os.close(reader)
    os.close(writer)
    assert answer[0] == "True"
    assert answer[1] != own.writer_id
    assert answer[2] == "app"
    assert ids.identity() == own


@pytest.mark.spec("HB-3")
@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="only Linux has such a clock")
def test_the_monotonic_clock_includes_the_time_of_a_suspend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A writer that sleeps with the machine must find its leases expired, as other writers do."""
    suspended_ms = 3_600_000
    steady_ns = time.clock_gettime_ns

    def after_a_suspend(clock: int) -> int:
        slept_ms = suspended_ms if clock == time.CLOCK_BOOTTIME else 0
        return steady_ns(clock) + slept_ms * 1_000_000

    began_ms = SystemClock().monotonic_ms()
    monkeypatch.setattr(time, "clock_gettime_ns", after_a_suspend)
    assert SystemClock().monotonic_ms() - began_ms >= suspended_ms


def test_ids_have_their_promised_forms() -> None:
    ids = SystemIds()
    assert len(ids.nonce()) == 32
    assert len(ids.uuid()) == 36
    assert 0 <= ids.jitter() < 1


@pytest.mark.parametrize("workers_max", [1, 3])
def test_map_returns_results_in_task_order(workers_max: int) -> None:
    with ThreadExecutor(workers_max) as executor:
        assert executor.map(lambda n: n * n, range(50)) == [n * n for n in range(50)]
        assert executor.map(str, []) == []


def test_map_runs_tasks_concurrently() -> None:
    meeting = threading.Barrier(3)
    with ThreadExecutor(3) as executor:
        executor.map(lambda _: meeting.wait(timeout=60), range(3))


def test_map_inside_map_does_not_deadlock() -> None:
    with ThreadExecutor(2) as executor:
        nested = executor.map(lambda n: sum(executor.map(lambda m: n * m, range(4))), range(6))
    assert nested == [0, 6, 12, 18, 24, 30]


@pytest.mark.spec("PUB-2")
def test_after_a_failure_started_tasks_end_before_it_is_raised() -> None:
    both_started = threading.Barrier(2)
    failed = threading.Event()
    ended: list[int] = []

    def work(task: int) -> None:
        both_started.wait(timeout=60)
        if task == 0:
            failed.set()
            raise ZeroDivisionError
        failed.wait(timeout=60)
        ended.append(task)

    with ThreadExecutor(2) as executor, pytest.raises(ZeroDivisionError):
        executor.map(work, range(2))
    assert ended == [1]


def test_after_a_failure_no_task_starts() -> None:
    started: list[int] = []

    def work(task: int) -> None:
        started.append(task)
        if task == 2:
            raise ZeroDivisionError

    with ThreadExecutor(1) as executor, pytest.raises(ZeroDivisionError):
        executor.map(work, range(100))
    assert started == [0, 1, 2]


def test_threads_that_waited_together_once_end_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A storage that does not answer must not leave its threads to a long-lived process."""
    together = 12
    all_there = threading.Barrier(together)
    waited: list[threading.Thread] = []

    def wait_together() -> None:
        waited.append(threading.current_thread())
        all_there.wait(timeout=60)

    with ThreadExecutor(1) as executor:
        executor.concurrently([wait_together] * together)
        waited.remove(threading.current_thread())  # the calling thread works too
        assert len(set(waited)) == together - 1
        monkeypatch.setattr(machine, "_POOL_S", 0.0)
        assert executor.start(lambda: 5).result() == 5
        for one in waited:
            one.join(timeout=60)
        assert not any(one.is_alive() for one in waited)


def test_work_continues_while_the_thread_pool_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_POOL_S", 0.0)
    results: list[list[int]] = []
    with ThreadExecutor(4) as executor:

        def work() -> None:
            results.append(executor.map(lambda n: n * n, list(range(20))))

        crowd = [threading.Thread(target=work) for _ in range(8)]
        for one in crowd:
            one.start()
        for one in crowd:
            one.join(timeout=60)
    assert results == [[n * n for n in range(20)]] * 8


def test_repetition_survives_failures_and_ends_for_good() -> None:
    events, again = Kept(), threading.Event()
    runs: list[int] = []

    def work() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise ValueError("once")
        again.set()

    ticker = ThreadExecutor(events=events).every(1, work)
    assert again.wait(timeout=60)
    ticker.stop()
    ticker.stop()
    again.clear()
    assert not again.wait(timeout=0.02)
    assert events.names == ["background.failed {'error': 'ValueError: once'}"]


def test_repetition_may_stop_itself() -> None:
    ended = threading.Event()
    made = threading.Event()

    def work() -> None:
        made.wait(timeout=60)
        ticker.stop()
        ended.set()

    ticker = ThreadExecutor().every(1, work)
    made.set()
    assert ended.wait(timeout=60)


def test_logged_values_are_escaped_and_secrets_masked(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="hoodoo"):
        LoggingEvents().emit("publish.refused", path="a\nb\x1b", db_password="x", fencing_token=3)
        LoggingEvents().emit("storage.call", path="p")
    here = [r for r in caplog.records if r.thread == threading.get_ident()]
    assert [(r.levelname, r.getMessage()) for r in here] == [
        ("WARNING", 'publish.refused path="a\\nb\\u001b" db_password="***" fencing_token=3'),
        ("DEBUG", 'storage.call path="p"'),
    ]


def test_one_broken_sink_withholds_no_event_from_the_others() -> None:
    kept = Kept()
    FanOut([Broken(), NullEvents(), kept]).emit("x.y", n=1)
    assert kept.names == ["x.y {'n': 1}"]
