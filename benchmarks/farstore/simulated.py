"""
Run many writers on a simulated high-latency store, in simulated time.

The writers are the shipped engine; only clocks, threads and requests are simulated. A request takes a
simulated time, half of it before its effect and half after it, and everything else takes none. So the
results do not depend on the machine: the same seed gives the same run, however busy the machine is.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Self
from unittest.mock import patch

import greenlet
import obstore
from obstore.exceptions import AlreadyExistsError, PreconditionError

from benchmarks.farstore.objects import Bucket, Object, RefusedError
from timeline.system import SystemIds

START_MS = 1_900_000_000_000
DELAY_MS = 60.0
SPREAD = 0.1  # a request takes 0.9 to 1.1 times the delay
PAGE = 1_000


class SimulatedStore:
    """
    A store and the time in it; ``with SimulatedStore(seed) as store`` replaces the real ones.

    Args:
        seed: Decides the delay of each request and each jitter.
        delay_ms: Mean time of a request.
    """

    def __init__(self, seed: int, delay_ms: float = DELAY_MS) -> None:
        self.bucket = Bucket()
        self.requests = 0
        self.refused = 0
        self.now = 0.0  # ms since the start
        self._delay_ms = delay_ms
        self._draw = random.Random(seed)
        self._order = itertools.count()
        self._sleeping: list[tuple[float, int, greenlet.greenlet]] = []
        self._hub = greenlet.getcurrent()
        self._patches = contextlib.ExitStack()

    def draw(self) -> float:
        """Return a random number in [0, 1)."""
        return self._draw.random()

    # -- time and tasks

    def start(self, work: Callable[[], object], at_ms: float | None = None) -> None:
        """Run some work concurrently with other work, from now on or from a later time."""
        task = greenlet.greenlet(work, self._hub)
        heapq.heappush(
            self._sleeping, (self.now if at_ms is None else at_ms, next(self._order), task)
        )

    def wait(self, duration_ms: float) -> None:
        """Let a time pass for the current task."""
        task = greenlet.getcurrent()
        if task is self._hub:
            raise RuntimeError("only tasks wait")
        heapq.heappush(self._sleeping, (self.now + duration_ms, next(self._order), task))
        self._hub.switch()

    def run(self, until: Callable[[], bool]) -> None:
        """Let the tasks run until something holds."""
        while self._sleeping and not until():
            self.now, _, task = heapq.heappop(self._sleeping)
            task.switch()

    def perform(self, work: Callable[[], Any]) -> Any:
        """Run some work as a task to its end, and return its result."""
        results: list[Any] = []
        self.start(lambda: results.append(work()))
        self.run(lambda: bool(results))
        return results[0]

    def concurrently(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run calls side by side; return their results, or raise the first error after all ended."""
        results: list[Any] = [None] * len(calls)
        errors: list[Exception] = []
        left = len(calls)
        caller = greenlet.getcurrent()

        def one(number: int) -> None:
            nonlocal left
            try:
                results[number] = calls[number]()
            except Exception as error:  # noqa: BLE001 - raised below
                errors.append(error)
            left -= 1
            if not left:
                heapq.heappush(self._sleeping, (self.now, next(self._order), caller))

        for number in range(len(calls)):
            self.start(partial(one, number))
        if calls:
            self._hub.switch()
        if errors:
            raise errors[0]
        return results

    # -- requests

    @contextlib.contextmanager
    def _request(self) -> Iterator[None]:
        half = self._delay_ms * (1 + SPREAD * (2 * self.draw() - 1)) / 2
        self.requests += 1
        self.wait(half)
        try:
            yield
        except (AlreadyExistsError, PreconditionError):
            self.refused += 1
            raise
        finally:
            self.wait(half)

    def _found(self, key: str) -> Object:
        found = self.bucket.get(key)
        if found is None:
            raise FileNotFoundError(key)
        return found

    def get(self, _client: Any, key: str, *, options: Any = None) -> Any:
        with self._request():
            found = self._found(key)
        data = found.data
        if options is not None:
            if not data:
                raise ValueError("non-partial response")
            data = data[-options["range"]["suffix"] :]
        return _Answer(_meta(key, found), data)

    def get_range(self, _client: Any, key: str, *, start: int, end: int) -> Any:
        with self._request():
            return _Answer({}, self._found(key).data[start:end])

    def head(self, _client: Any, key: str) -> Any:
        with self._request():
            return _meta(key, self._found(key))

    def put(self, _client: Any, key: str, data: Any, *, mode: Any = "overwrite", **_: Any) -> Any:
        headers = {}
        if mode == "create":
            headers = {"if-none-match": "*"}
        elif isinstance(mode, dict):
            headers = {"if-match": mode["e_tag"]}
        with self._request():
            try:
                made = self.bucket.put(key, bytes(data), self.seconds, headers)
            except RefusedError as error:
                if mode == "create":
                    raise AlreadyExistsError(key) from error
                if error.status == 404:
                    raise FileNotFoundError(key) from error
                raise PreconditionError(key) from error
        return {"e_tag": made.e_tag, "version": None}

    def delete(self, _client: Any, keys: Any) -> None:
        with self._request():
            for key in [keys] if isinstance(keys, str) else keys:
                self.bucket.delete(key)

    def list_with_delimiter(self, _client: Any, prefix: str | None = None) -> Any:
        with self._request():
            start = f"{prefix}/" if prefix else ""
            objects, prefixes, after = [], [], ""
            while after is not None:
                page = self.bucket.list(start, "/", after, PAGE)
                objects += [_meta(*one) for one in page.objects]
                prefixes += [one.rstrip("/") for one in page.prefixes]
                after = page.after
            return {"objects": objects, "common_prefixes": prefixes}

    def list(self, _client: Any, prefix: str | None = None, **_: Any) -> Any:
        with self._request():
            start = f"{prefix}/" if prefix else ""
            return [[_meta(*one) for one in self.bucket.list(start, "", "", 10**6).objects]]

    @property
    def seconds(self) -> float:
        return (START_MS + self.now) / 1000

    # -- in place of the real ones

    def __enter__(self) -> Self:
        store = self

        class Clock:
            def now_ms(self) -> int:
                return int(START_MS + store.now)

            def monotonic_ms(self) -> int:
                return int(store.now)

            def sleep_ms(self, duration_ms: int) -> None:
                store.wait(duration_ms)

            def precise_seconds(self) -> float:
                return store.now / 1000

        class Ids(SystemIds):
            def jitter(self) -> float:
                return store.draw()

        class Executor:
            def __init__(self, *_: object, **__: object) -> None: ...

            def map(self, work: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
                return store.concurrently([partial(work, task) for task in tasks])

            def concurrently(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
                return store.concurrently(calls)

            def every(self, interval_ms: int, work: Callable[[], None]) -> _Ticker:
                ticker = _Ticker()

                def repeat() -> None:
                    while True:
                        store.wait(interval_ms)
                        if ticker.stopped:
                            return
                        with contextlib.suppress(Exception):
                            work()

                store.start(repeat)
                return ticker

            def close(self) -> None: ...

        for target, made in {
            "hoodoo.factory.SystemClock": Clock,
            "hoodoo.factory.SystemIds": Ids,
            "hoodoo.factory.ThreadExecutor": Executor,
            "timeline.storage.object_store.SystemClock": Clock,
            "timeline.storage.object_store.SystemIds": Ids,
        }.items():
            self._patches.enter_context(patch(target, made))
        for name in ("get", "get_range", "head", "put", "delete", "list", "list_with_delimiter"):
            self._patches.enter_context(patch.object(obstore, name, getattr(self, name)))
        self._patches.enter_context(
            patch(
                "timeline.storage.object_store.ObjectStorage.compute_permit",
                contextlib.nullcontext(),
            )
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._patches.close()


class _Ticker:
    stopped = False

    def stop(self) -> None:
        self.stopped = True


class _Answer:
    def __init__(self, meta: dict[str, Any], data: bytes) -> None:
        self.meta = meta
        self._data = data

    def bytes(self) -> Self:
        return self

    def to_bytes(self) -> Any:
        return self._data


def _meta(key: str, found: Object) -> dict[str, Any]:
    modified = datetime.fromtimestamp(found.modified_s, UTC)
    return {
        "path": key,
        "size": len(found.data),
        "e_tag": found.e_tag,
        "version": None,
        "last_modified": modified.replace(microsecond=0),
    }
