"""
Run every interleaving of a small scope once: a stateless search that skips equivalent orders.

Two calls that touch different objects commute, so the search runs only one of their orders. It
runs the scope again and again. After each run it finds pairs of calls that conflict and could
also run in the other order, and goes back to that place (dynamic partial order reduction with
source sets). Calls already tried at a place sleep until another call touches the same objects
(sleep sets). Each interleaving that is left out is equivalent to one that was run.

``tests.simulator.scheduler.explore`` finds equal states instead. That is better for toys, in which
all calls conflict; engines make most of their calls on files of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.simulator.faults import Fault, Faults, Move
from tests.simulator.footprints import Footprint, footprint_of, footprint_of_fault
from tests.simulator.ports import Actor
from tests.simulator.simulated_run import Check, Run
from tests.simulator.trace import Trace
from tests.simulator.world import CallKind, PortCall, SimulatedSystem

#: A process of the search: a task's number, or ``LATE`` for the storage's late requests.
LATE = -1

#: One way in which a process can continue: usually one move, with a fault sometimes two.
Label = tuple[Move, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """
    A new simulated system with its actors, and the checks after each event and at the end.

    ``begun`` runs actors, one after the other, until their next call contains this piece of
    ``method path``, or to their ends if it is empty. The search starts there.
    """

    world: SimulatedSystem
    actors: Sequence[Actor]
    begun: Mapping[str, str] = field(default_factory=dict)
    check_step: Check | None = None
    check_end: Check | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """
    How much a search covered.

    ``runs`` were played to the end, each from a different class of interleavings. ``cut_short`` ones
    repeated an earlier run. ``complete`` means that every class was run.
    """

    runs: int
    cut_short: int
    steps: int
    complete: bool
    failed: Trace | None  # the first broken run


@dataclass(slots=True)
class _Place:
    """A state on the present path, and the moves that remain to be tried there."""

    labels: dict[int, list[Label]]  # of every process that can continue
    touched: dict[int, Footprint]  # by its next call
    sleeping: set[int]
    wanted: set[int]
    process: int
    label: int = 0

    @property
    def moves(self) -> Label:
        """The moves made here on the present path."""
        return self.labels[self.process][self.label]

    def turn_to_next(self) -> bool:
        """Choose an untried move; return False when none is left."""
        if self.label + 1 < len(self.labels[self.process]):
            self.label += 1
            return True
        self.sleeping.add(self.process)
        for process in sorted(self.wanted - self.sleeping):
            if process in self.labels:
                self.process, self.label = process, 0
                return True
        return False


@dataclass(slots=True)
class _Event:
    """A call that was made: its process, its footprint, and the events that led to it (bits)."""

    process: int
    touched: Footprint
    after: int


def cover(
    make_scene: Callable[[], Scene],
    *,
    faults: Faults | None = None,
    crash_at: Callable[[PortCall], bool] | None = None,
    runs_max: int = 100_000,
    steps_max: int = 2_000,
) -> Coverage:
    """
    Run every class of interleavings of a scope, with every fault the budgets allow.

    Calls take no time here. Time passes only when no process can continue, so a process that sleeps
    or waits outlasts each running one.

    Args:
        make_scene: Builds a new system with its actors, always the same.
        faults: Budgets, of crashes, lost leases and faults of one call; others do not happen.
        crash_at: Calls before which an actor may die. None means all calls that change something:
            a death before a read is the death after the call before it.
        runs_max: Stop (not complete) after this many.
        steps_max: A longer run fails.

    Returns:
        Counts, and the trace of the first broken run if there is one.
    """
    path: list[_Place] = []
    runs = cut_short = steps = 0
    while True:
        search = _Path(make_scene(), faults or Faults(), path, crash_at or _changes)
        trace, ended = search.play(steps_max)
        steps += len(trace.steps)
        runs += ended
        cut_short += not ended
        if trace.failure is not None:
            return Coverage(
                runs=runs, cut_short=cut_short, steps=steps, complete=False, failed=trace
            )
        while path and not path[-1].turn_to_next():
            path.pop()
        if not path or runs + cut_short >= runs_max:
            return Coverage(
                runs=runs, cut_short=cut_short, steps=steps, complete=not path, failed=None
            )


class _Path:
    """One run along the chosen places and beyond them to an end."""

    def __init__(
        self,
        scene: Scene,
        faults: Faults,
        path: list[_Place],
        crash_at: Callable[[PortCall], bool],
    ) -> None:
        self._scene = scene
        self._world = scene.world
        self._world.call_ms = 0
        self._run = Run(self._world, scene.actors, seed=0, faults=faults)
        self._path = path
        self._crash_at = crash_at
        self._budgets = faults.budgets or {}
        self._events: list[_Event] = []
        self._last: dict[int, int] = {}  # events known to each process, as bits
        self._barrier = 0
        for place, actor in enumerate(scene.actors):
            if actor.name in scene.begun:
                self._bring(place, scene.begun[actor.name])
        self._read_identity = len(self._run.tasks)

    def _bring(self, number: int, call: str) -> None:
        """Run one actor alone until its next call is this one; to its end when it is empty."""
        move, task = ("step", number), self._run.tasks[number]
        while not task.done and not (call and call in self._run.describe(move)):
            self._run.do(move)
        if call and task.done:
            raise LookupError(f"the actor ended before a call like {call!r}")

    def play(self, steps_max: int) -> tuple[Trace, bool]:
        """Go to an end; False in the second place when it would only have repeated another."""
        run, trace, scene = self._run, self._run.trace, self._scene
        try:
            while trace.failure is None:
                moves = self._moves()
                if not moves:
                    run.finish(scene.check_end)
                    break
                at = len(self._events)
                if at == len(self._path) and not self._open(moves):
                    return trace, False
                if at >= steps_max:
                    run.fail(f"not ended after {steps_max} calls")
                self._go(at, self._path[at])
                if scene.check_step is not None:
                    run.judge(scene.check_step)
        finally:
            run.close()
        return trace, True

    def _moves(self) -> list[Move]:
        before = self._world.now_ms
        moves = self._run.plain_moves()
        if self._world.now_ms != before:  # time passes for all: nothing moves across that
            self._barrier = (1 << len(self._events)) - 1
        return moves

    def _open(self, moves: Sequence[Move]) -> bool:
        """Arrive at a new place; return False when all processes that can continue there sleep."""
        labels = self._labels(moves)
        touched = {process: self._touched(process) for process in labels}
        sleeping: set[int] = set()
        if self._path:
            former, made = self._path[-1], self._events[-1].touched
            sleeping = {
                process
                for process in former.sleeping
                if process in labels and not former.touched[process].meets(made)
            }
        awake = [process for process in labels if process not in sleeping]
        if not awake:
            return False
        self._path.append(
            _Place(
                labels=labels,
                touched=touched,
                sleeping=sleeping,
                wanted={awake[0]},
                process=awake[0],
            )
        )
        return True

    def _labels(self, moves: Sequence[Move]) -> dict[int, list[Label]]:
        labels: dict[int, list[Label]] = {}
        for move in moves:
            if move[0] == "land":
                labels[LATE] = [(move,)]
            elif move[0] == "step":
                labels[move[1]] = [(move,)]
            else:
                raise NotImplementedError("a scope has no background work: make beats rare")
        for kind, target in self._run.fault_moves():
            fault = Fault(kind)
            if fault is Fault.LEASE_LOST or target not in labels or fault not in _AT_A_CALL:
                continue
            call = self._run.tasks[target].pending
            if call is not None and (fault not in _DEATHS or self._crash_at(call)):
                labels[target].append(((kind, target),))
        budget = self._budgets.get(Fault.LEASE_LOST, 0)
        if self._run.trace.faults.get(Fault.LEASE_LOST.value, 0) < budget:
            self._add_lost_leases(labels)
        return labels

    def _add_lost_leases(self, labels: dict[int, list[Label]]) -> None:
        """A lease that ends is noticed at the lock alone: it may as well end after a call there."""
        for process, ways in labels.items():
            call = self._run.tasks[process].pending if process != LATE else None
            if call is not None and call.port == "lock" and call.method != "release":
                ways.append((*ways[0], (Fault.LEASE_LOST.value, 0)))

    def _touched(self, process: int) -> Footprint:
        if process == LATE:
            late = self._world.late[0]
            return footprint_of(
                self._world,
                PortCall("storage", "create", late.path, lambda: None, kind=CallKind.CREATE),
            )
        call = self._run.tasks[process].pending
        assert call is not None
        return footprint_of(self._world, call)

    # ------------------------------------------------------------ one event

    def _go(self, at: int, place: _Place) -> None:
        process = place.process
        touched = self._touched(process)
        for kind, _ in place.moves:
            touched = touched.and_also(footprint_of_fault(kind))
        self._record(at, process, touched)
        for move in place.moves:
            self._run.do(move)
        for number in range(
            self._read_identity, len(self._run.tasks)
        ):  # started by this very event
            self._last[number] = self._events[-1].after
        self._read_identity = len(self._run.tasks)

    def _record(self, at: int, process: int, touched: Footprint) -> None:
        """
        Record the event, the events that led to it, and where it could happen in the other order.
        """
        events = self._events
        known = self._last.get(process, 0) | self._barrier
        led_by, covered = known, known
        races: list[int] = []
        for number in range(at - 1, -1, -1):
            bit = 1 << number
            other = events[number]
            if known & bit or not touched.meets(other.touched):
                continue
            led_by |= other.after
            if covered & bit:
                continue
            # could not have happened first: search further back
            if touched.waits_for(other.touched):
                covered |= bit
                continue
            races.append(number)
            covered |= other.after
        events.append(_Event(process, touched, led_by | 1 << at))
        self._last[process] = led_by | 1 << at
        for number in races:
            self._want_reversed(number, at)

    def _want_reversed(self, first: int, second: int) -> None:
        """Request, at the place of ``first``, a run in which ``second`` happens before it."""
        events, place = self._events, self._path[first]
        bit = 1 << first
        others = [n for n in range(first + 1, second) if not events[n].after & bit]
        others.append(second)
        mask = sum(1 << n for n in others)
        seen: set[int] = set()
        openers: list[int] = []
        for number in others:
            one = events[number]
            if one.process in seen:
                continue
            seen.add(one.process)
            if not one.after & mask & ~(1 << number):
                openers.append(one.process)
        if place.wanted.intersection(openers):
            return
        possible = [process for process in openers if process in place.labels]
        if possible:
            preferred = events[second].process
            place.wanted.add(preferred if preferred in possible else possible[0])
        else:
            place.wanted.update(place.labels)


def _changes(call: PortCall) -> bool:
    return call.kind in (CallKind.CREATE, CallKind.CHANGE)


_DEATHS = frozenset({Fault.CRASH_BEFORE, Fault.CRASH_AFTER})
_AT_A_CALL = _DEATHS | {
    Fault.UNAVAILABLE,
    Fault.UNAVAILABLE_AFTER,
    Fault.AMBIGUOUS_APPLIED,
    Fault.AMBIGUOUS_LOST,
    Fault.AMBIGUOUS_LATE,
    Fault.DUPLICATED,
}
