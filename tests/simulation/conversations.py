"""
Skip work that was done before: remember its storage questions, the answers and the result.

Thousands of schedules merge the same rows into the same file. The work depends only on its
arguments and on the answers of the storage. If the answers so far are the same, it asks the same
next question. So its questions are kept as a tree of answers. Every question still goes to the
present storage, from the present actor: faults and the calls of other actors between two calls
work as if the work were done. Only the computation between two calls is skipped. After an unknown
answer or a failure, the real work runs: it gets the answers so far and continues from there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import IO, Any, Generic, TypeAlias, TypeVar, cast

import pyarrow as pa

from tests.simulator.ports import in_order
from tests.simulator.sim_storage import OutputFile
from timeline.ports.ports import Ports, open_cached

Result = TypeVar("Result")

#: Name of the call and its arguments.
Question: TypeAlias = tuple[Any, ...]
#: A question, its answer or the error that was raised instead.
Exchange: TypeAlias = tuple[Question, Any, Exception | None]

_ANSWERS_MAX = 32  # ends that one key's conversation may have


@dataclass(slots=True)
class _Asks:
    """A question, and the next node for each answer."""

    question: Question
    then: dict[Hashable, _Asks | _Ends] = field(default_factory=dict)


@dataclass(slots=True)
class _Ends:
    result: Any


@dataclass(slots=True)
class _Known:
    first: _Asks | _Ends
    ends: int = 1


class Conversations(Generic[Result]):
    """
    Results of one kind of work.

    Args:
        most: Number of keys to keep. Keys that were used once are dropped first, in their order:
            half of all are never used again, and would drive out the others. Three quarters may be
            kept longer; then they count as used once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._once: dict[Hashable, _Known] = {}  # both in the order of their last use
        self._again: dict[Hashable, _Known] = {}
        self.done = 0
        self.remembered = 0

    def result(self, key: Hashable, world: Ports, work: Callable[[Ports], Result]) -> Result:
        """
        Return the result of the work in this world.

        Args:
            key: Equal if all inputs of the work are equal, apart from the answers of the storage.
            world: Its storage answers, and its executor gives the order of tasks.
            work: Uses only the storage and ``executor.map`` of the world it gets. Callers must not
                change the result.

        Raises:
            Exception: Any error of the work.
            AssertionError: The key does not determine the work.
        """
        asked = _Asked(world)
        known = self._met(key)
        if known is not None:
            end = _follow(known.first, asked)
            if end is not None:
                self.remembered += 1
                return cast("Result", end.result)
        asked.begin_again()
        result = work(replace(world, storage=cast("Any", asked), executor=cast("Any", asked)))
        self.done += 1
        if all(error is None for _, _, error in asked.exchanges):
            self._keep(key, asked.exchanges, result)
        return result

    def _met(self, key: Hashable) -> _Known | None:
        known = self._again.pop(key, None) or self._once.pop(key, None)
        if known is not None:
            self._again[key] = known
            if 4 * len(self._again) > 3 * self._most:
                oldest = next(iter(self._again))
                self._once[oldest] = self._again.pop(oldest)
        return known

    def _keep(self, key: Hashable, exchanges: Sequence[Exchange], end: Result) -> None:
        known = self._again.get(key) or self._once.get(key)  # others worked meanwhile
        if known is None:
            while len(self._once) + len(self._again) >= self._most:
                first = self._once or self._again
                del first[next(iter(first))]
            self._once[key] = _Known(_path(exchanges, end))
        elif known.ends < _ANSWERS_MAX:
            known.ends += 1
            _add(known.first, exchanges, end)


def _follow(node: _Asks | _Ends | None, asked: _Asked) -> _Ends | None:
    """Ask the known questions; return None when the real work must run."""
    while isinstance(node, _Asks):
        try:
            answer = asked.ask(*node.question)
        except Exception:  # noqa: BLE001 - what it means is decided by the real work
            return None
        node = node.then.get(answer)
    return node


def _path(exchanges: Sequence[Exchange], end: object) -> _Asks | _Ends:
    node: _Asks | _Ends = _Ends(end)
    for question, answer, _ in reversed(exchanges):
        node = _Asks(question, {answer: node})
    return node


def _add(node: _Asks | _Ends, exchanges: Sequence[Exchange], end: object) -> None:
    for place, (question, answer, _) in enumerate(exchanges):
        assert isinstance(node, _Asks), f"this was the end before: {question}"
        assert node.question == question, f"before {node.question} was asked, now {question}"
        if answer not in node.then:
            node.then[answer] = _path(exchanges[place + 1 :], end)
            return
        node = node.then[answer]


class _Asked:
    """
    The storage and the executor that the real work sees.

    Questions that were put already get the answers they got; the work must put the same.
    """

    def __init__(self, world: Ports) -> None:
        self._world = world
        self._outputs: dict[str, IO[bytes]] = {}
        self._replayed: Iterator[Exchange] = iter(())
        self.exchanges: list[Exchange] = []

    def begin_again(self) -> None:
        """Start the real work; it first gets the recorded answers."""
        self._replayed = iter(tuple(self.exchanges))

    def ask(self, *question: Any) -> Any:
        """The answer, once for each question."""
        before = next(self._replayed, None)
        if before is not None:
            known, answer, error = before
            assert known == question, f"before {known} was asked, now {question}"
            if error is not None:
                raise error
            return answer
        method, *arguments = question
        try:
            answer = getattr(self, f"_{method}")(*arguments)
        except Exception as error:
            self.exchanges.append((question, None, error))
            raise
        self.exchanges.append((question, answer, None))
        return answer

    # ------------------------------------------------------------ calls of the work

    def open_input(self, path: str) -> Any:
        return _native(self.ask("open_input", path))

    def open_kept(self, path: str) -> Any:
        return _native(self.ask("open_kept", path))

    def stat(self, path: str) -> Any:
        return self.ask("stat", path)

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self.ask("create", path, data, durable)

    def open_output(self, path: str) -> OutputFile:
        """Its bytes are one question; if the work failed, the real file gets the error."""
        self.ask("open_output", path)
        return OutputFile(
            partial(self.ask, "close", path),
            lambda *failed: self._outputs.pop(path).__exit__(*failed),
        )

    def map(self, work: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        """In the order in which the executor at hand takes them; all of them, as of the port."""
        return in_order(self.ask("order", len(tasks)), work, tasks)

    # ------------------------------------------------------------ answers of the world

    def _open_input(self, path: str) -> bytes:
        with self._world.storage.open_input(path) as source:
            return source.read()

    def _open_kept(self, path: str) -> bytes:
        with open_cached(self._world.storage, path) as source:
            return source.read()

    def _stat(self, path: str) -> Any:
        return self._world.storage.stat(path)

    def _create(self, path: str, data: bytes, durable: bool) -> None:
        self._world.storage.create(path, data, durable=durable)

    def _open_output(self, path: str) -> None:
        self._outputs[path] = self._world.storage.open_output(path)

    def _close(self, path: str, data: bytes) -> None:
        output = self._outputs.pop(path)
        output.write(data)
        output.close()

    def _order(self, count: int) -> tuple[int, ...]:
        order: list[int] = []
        self._world.executor.map(order.append, range(count))
        return tuple(order)


def _native(data: bytes) -> Any:
    """As ``SimStorage.open_input`` hands it out."""
    copy = pa.BufferOutputStream()
    copy.write(data)
    return pa.BufferReader(copy.getvalue())
