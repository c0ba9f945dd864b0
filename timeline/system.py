"""
The system ports: clock, identity, threads and logs.

Besides the storage and lock adapters, only this module may use time, randomness or threads.
Everything else receives these objects. A forked child never acts as its parent: identity and
thread pools check their process id.
"""

from __future__ import annotations

import io
import ipaddress
import json
import logging
import math
import os
import socket
import struct
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeAlias, TypeVar
from zoneinfo import ZoneInfo

from timeline.errors import UnsafeSetupError
from timeline.model.instant_time import TimelineZone
from timeline.ports.ports import EventSink, ProcessIdentity, Value
from timeline.redaction import redact

Task = TypeVar("Task")
Result = TypeVar("Result")
Started: TypeAlias = Future[Result]  # work on another thread

_LOCALTIME = Path("/etc/localtime")
_WORKERS_MAX, _WAITERS_MAX = 8, 48
_POOL_S, _BACKGROUND_THREADS = 60.0, 2
_STEADY = getattr(time, "CLOCK_BOOTTIME", None)  # Linux: counts the time of a suspend, too
_LOGGER = logging.getLogger("hoodoo")
_LOGGER.addHandler(logging.NullHandler())

_WARNING_ENDS = ("failed", "refused", "lost", "expired", "alarm", "warning", "unknown", "noticed")


def is_loopback(host: str) -> bool:
    """Return whether a host name or address, also an IPv6 one in brackets, means this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.casefold() == "localhost"


class SystemClock:
    """The clocks of this host."""

    def now_ms(self) -> int:
        """Return the wall clock in ms since 1970-01-01 UTC; it may jump."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Return a clock in ms that never goes back, to measure leases elsewhere (HB-3)."""
        now_ns = time.monotonic_ns() if _STEADY is None else time.clock_gettime_ns(_STEADY)
        return now_ns // 1_000_000

    def sleep_ms(self, duration_ms: int) -> None:
        """Wait for some ms; return at once for zero and less."""
        if duration_ms > 0:
            time.sleep(duration_ms / 1000)


def process_zone() -> TimelineZone:
    """
    Return the time zone of this process: ``TZ`` (a POSIX rule, too), else the host's.

    Raises:
        UnsafeSetupError: This host has no rules of that name; the C library would use UTC.
    """
    value = os.environ.get("TZ")
    if value is None:
        return _machine_zone()
    name = value.removeprefix(":")
    if name in ("", "UTC", "Etc/UTC", "GMT"):
        return TimelineZone("UTC")
    with suppress(KeyError, ValueError, OSError):  # no such name, or no rules file
        if not name.startswith("/"):
            return TimelineZone(name, ZoneInfo(name))
        with Path(name).open("rb") as rules:
            return TimelineZone(_zone_named(name), ZoneInfo.from_file(rules))
    with suppress(ValueError):
        return TimelineZone(name, ZoneInfo.from_file(io.BytesIO(_rules_file(name))))
    raise UnsafeSetupError(
        "the table's times are in the time zone of its writers, and this host lacks the rules of "
        f"the zone of this process: correct TZ or install the package tzdata: TZ={value!r}",
        kind="time_zone",
        zone=value,
    )


def _machine_zone() -> TimelineZone:
    try:
        with _LOCALTIME.open("rb") as rules:
            found = ZoneInfo.from_file(rules)
    except (OSError, ValueError):
        return TimelineZone("UTC")
    return TimelineZone(_zone_named(str(_LOCALTIME.resolve())), found)


def _zone_named(path: str) -> str:
    return path.rpartition("/zoneinfo/")[2] if "/zoneinfo/" in path else path


def _rules_file(rule: str) -> bytes:
    """Return a rules file (RFC 9636) that contains only one POSIX rule."""
    block = b"TZif2" + bytes(15) + struct.pack(">6L", 0, 0, 0, 0, 1, 4) + bytes(6) + b"UTC\0"
    return block + block + b"\n" + rule.encode("ascii", "replace") + b"\n"


class SystemIds:
    """
    Random numbers of the operating system and the identity of this process.

    Args:
        application: The user's text of ``hoodie.write.application.id``, may be empty.
    """

    def __init__(self, application: str = "") -> None:
        self._application = application
        self._identity = self._new_identity()

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy in another process must not have this process's writer id.
        return (SystemIds, (self._application,))

    def uuid(self) -> str:
        """Return a random UUID, lower-case hex with dashes."""
        return str(uuid.uuid4())

    def nonce(self) -> str:
        """Return 128 random bits as 32 hex digits."""
        return os.urandom(16).hex()

    def jitter(self) -> float:
        """Return a random number in [0, 1), from the system, so that forked children differ."""
        return int.from_bytes(os.urandom(4), "big") / 2**32

    def identity(self) -> ProcessIdentity:
        """Return the identity of this process; a forked child gets its own (F26)."""
        if self._identity.pid != os.getpid():
            self._identity = self._new_identity()
        return self._identity

    def _new_identity(self) -> ProcessIdentity:
        return ProcessIdentity(
            host=socket.gethostname(),
            pid=os.getpid(),
            writer_id=str(uuid.uuid4()),
            application=self._application,
        )


class NullEvents:
    """Discards every event."""

    def emit(self, name: str, /, **fields: Value) -> None:
        """Discard one event."""


class LoggingEvents:
    """Writes events to the standard logger ``hoodoo``; silent until the user configures logging."""

    def emit(self, name: str, /, **fields: Value) -> None:
        """
        Log one event: refusals and failures as warnings, calls as debug, the rest as info.

        Options without effect are debug, too. Values are escaped (SEC19) and secrets masked (SEC5).
        """
        level = logging.INFO
        if name.endswith(_WARNING_ENDS):
            level = logging.WARNING
        elif name.endswith((".call", ".without_effect")):
            level = logging.DEBUG
        if _LOGGER.isEnabledFor(level):
            shown = " ".join(f"{key}={_shown(key, value)}" for key, value in fields.items())
            _LOGGER.log(level, "%s %s", name, shown)


class FanOut:
    """Sends every event to several sinks; if one fails, the others still get it."""

    def __init__(self, sinks: Sequence[EventSink]) -> None:
        self._sinks = tuple(sinks)

    def emit(self, name: str, /, **fields: Value) -> None:
        """Send one event to all sinks."""
        for sink in self._sinks:
            try:
                sink.emit(name, **fields)
            except Exception:  # a user's sink must never stop a commit
                _LOGGER.debug("an event sink failed on %s", name, exc_info=True)


class ThreadExecutor:
    """
    Runs tasks on a bounded pool of threads that is kept between calls.

    The calling thread works too, so a task may call ``map`` again without a deadlock.

    Args:
        workers_max: The most threads at work, the caller included; default ``min(8, number of
            processors)``.
        events: Receives failures of background work.
    """

    def __init__(self, workers_max: int | None = None, *, events: EventSink | None = None) -> None:
        chosen = workers_max if workers_max is not None else min(_WORKERS_MAX, os.cpu_count() or 1)
        self._events: EventSink = events or NullEvents()
        self._workers = _Threads(max(1, chosen), "hoodoo")
        self._waiters = _Threads(_WAITERS_MAX, "hoodoo-wait")

    @property
    def workers_max(self) -> int:
        """The most threads at work, the calling one included."""
        return self._workers.most

    def map(self, work: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        """
        Run ``work`` on every task, in any order, and return the results in task order.

        After the first failure no new task starts. That failure is raised once all started tasks
        ended (PUB-2: no late task).
        """
        return self._carry_out(_MapRun(work, tasks), len(tasks), self._workers)

    def concurrently(self, calls: Sequence[Callable[[], Result]]) -> list[Result]:
        """
        Run calls that wait for a high-latency store, at most 48 at a time; results in their order.

        They run on separate threads. These only wait, so there may be more of them than
        processors. Failures are raised as by ``map``.
        """
        return self._carry_out(_MapRun(_call, calls), len(calls), self._waiters)

    def _carry_out(self, run: _MapRun, tasks: int, threads: _Threads) -> list[Any]:
        helpers = min(threads.most, tasks) - 1
        started: list[Future[None]] = []
        if helpers > 0:
            started = threads.submit(run.work_off, helpers)
        try:
            run.work_off()
            # A helper without a thread has nothing left to do. Waiting for it would deadlock if
            # all threads wait like this one.
            wait([helper for helper in started if not helper.cancel()])
        except BaseException:
            run.give_up()
            wait([helper for helper in started if not helper.cancel()])
            raise
        return run.outcome()

    def start(self, work: Callable[[], Result]) -> Started[Result]:
        """Start work that waits for a high-latency store, and return at once."""
        return self._waiters.submit(work)[0]

    def every(self, interval_ms: int, work: Callable[[], None]) -> ThreadTicker:
        """
        Call ``work`` every ``interval_ms`` on a daemon thread until stopped.

        An exception becomes an event ``background.failed``; the repetition continues.
        """
        return ThreadTicker(interval_ms, work, self._events)

    def close(self) -> None:
        """Release the threads; a later ``map`` creates new ones."""
        self._workers.close()
        self._waiters.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Threads:
    """
    A pool of threads besides the calling one, created at first use in each process.

    It is renewed from time to time. So a process whose threads all waited for a silent storage
    does not keep them forever: they end with their current work.
    """

    def __init__(self, most: int, name: str) -> None:
        self.most = most  # the calling thread included
        self._name = name
        self.reset()

    def reset(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._before: ThreadPoolExecutor | None = None
        self._made_s = 0.0
        self._pid = 0
        self._guard = threading.Lock()

    def submit(self, work: Callable[[], Result], times: int = 1) -> list[Future[Result]]:
        """Start some work that many times; work beyond the number of threads waits."""
        with self._guard:  # or the pool may close before the submit
            pool = self._current()
            return [pool.submit(work) for _ in range(times)]

    def _current(self) -> ThreadPoolExecutor:
        # Threads do not survive a fork: a child creates its own.
        known = self._pool if self._pid == os.getpid() else None
        if known is not None:
            if time.monotonic() - self._made_s < _POOL_S:
                return known
            known.shutdown(wait=False)
        self._before = known
        self._pool = ThreadPoolExecutor(max(1, self.most - 1), self._name)
        self._made_s, self._pid = time.monotonic(), os.getpid()
        return self._pool

    def close(self) -> None:
        with self._guard:
            pools, self._pool, self._before = (self._before, self._pool), None, None
        for pool in pools:
            if pool is not None and self._pid == os.getpid():
                pool.shutdown(wait=True)


class ThreadTicker:
    """
    Work that repeats on its own daemon thread; created by ``ThreadExecutor.every``.

    The thread starts when the first call is due. Most leases and heartbeats of small commits end
    long before, and for a table in memory starting a thread would be the most expensive step.
    """

    def __init__(self, interval_ms: int, work: Callable[[], None], events: EventSink) -> None:
        self._interval_s = max(interval_ms, 1) / 1000
        self._work = work
        self._events = events
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()
        self._first_due = time.monotonic() + self._interval_s
        _ALARM.add(self, self._first_due)

    def stop(self) -> None:
        """Stop; return when no further call can start. A second call is no error."""
        with self._guard:
            self._ended.set()
        _ALARM.remove(self)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def begin(self) -> None:
        """Start the thread, because the first call is due."""
        with self._guard:
            if not self._ended.is_set():
                self._thread = threading.Thread(
                    target=self._repeat, name="hoodoo-every", daemon=True
                )
                self._thread.start()

    def _repeat(self) -> None:
        due = self._first_due
        while not self._ended.wait(max(0.0, due - time.monotonic())):
            try:
                self._work()
            except Exception as error:  # noqa: BLE001  one missed heartbeat must not end all later
                self._events.emit("background.failed", error=f"{type(error).__name__}: {error}")
            # Beats that were missed while the work ran are skipped.
            due = max(due + self._interval_s, time.monotonic())


class _Alarm:
    """One daemon thread per process that starts tickers when their first call is due."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[ThreadTicker, float] = {}
        self._wakes_s = math.inf  # monotonic
        self._running = False

    def add(self, ticker: ThreadTicker, due_s: float) -> None:
        with self._changed:
            self._waiting[ticker] = due_s
            if not self._running:
                self._running = True
                threading.Thread(target=self._watch, name="hoodoo-alarm", daemon=True).start()
            elif due_s < self._wakes_s:
                self._changed.notify()

    def remove(self, ticker: ThreadTicker) -> None:
        with self._changed:
            self._waiting.pop(ticker, None)

    def _watch(self) -> None:
        while True:
            with self._changed:
                self._wakes_s = min(self._waiting.values(), default=math.inf)
                left_s = self._wakes_s - time.monotonic()
                if left_s > 0:
                    self._changed.wait(None if left_s == math.inf else left_s)
                now = time.monotonic()
                due = [ticker for ticker, due_s in self._waiting.items() if due_s <= now]
                for ticker in due:
                    del self._waiting[ticker]
            for ticker in due:
                ticker.begin()


_ALARM = _Alarm()


# A child has neither the thread nor the holder of the lock.
os.register_at_fork(after_in_child=_ALARM.reset)


_BACKGROUND = _Threads(_BACKGROUND_THREADS + 1, "hoodoo-background")  # they wait for the disk
os.register_at_fork(after_in_child=_BACKGROUND.reset)  # the child lacks the holder of the guard


def start_in_background(work: Callable[[], Result]) -> Started[Result]:
    """
    Start work on another thread of this process.

    Raises:
        RuntimeError: The interpreter is shutting down.
    """
    return _BACKGROUND.submit(work)[0]


def await_exit(work: Callable[[], object]) -> Callable[[int], None]:
    """
    Prepare work for the program's end; call the result to run it and wait at most some ms.

    Its daemon thread waits from now on, because newer Pythons start no thread at the end.
    """
    ends = threading.Event()
    thread = threading.Thread(target=lambda: (ends.wait(), work()), name="hoodoo-exit", daemon=True)
    thread.start()

    def end(ms_max: int) -> None:
        ends.set()
        thread.join(ms_max / 1000)

    return end


class _MapRun:
    """The state of one ``map``: the next task, the results, the first failure."""

    def __init__(self, work: Callable[[Any], Any], tasks: Sequence[Any]) -> None:
        self._work = work
        self._tasks = tasks
        self._results: list[Any] = [None] * len(tasks)
        self._next_index = 0
        self._failure: BaseException | None = None
        self._given_up = False
        self._guard = threading.Lock()

    def work_off(self) -> None:
        while True:
            with self._guard:
                index = self._next_index
                if self._failure is not None or self._given_up or index == len(self._tasks):
                    return
                self._next_index = index + 1
            try:
                self._results[index] = self._work(self._tasks[index])
            except BaseException as error:  # noqa: BLE001  ``outcome`` raises it in the caller
                with self._guard:
                    if self._failure is None:
                        self._failure = error
                return

    def give_up(self) -> None:
        with self._guard:
            self._given_up = True

    def outcome(self) -> list[Any]:
        if self._failure is not None:
            raise self._failure
        return self._results


def _call(call: Callable[[], Result]) -> Result:
    return call()


def _shown(key: str, value: Value) -> str:
    if isinstance(value, str):
        return json.dumps(redact(key, value))
    return redact(key, json.dumps(value, default=str))
