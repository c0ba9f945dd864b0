"""
One simulated run, move by move: actors are greenlets whose port calls wait to be chosen.

Every actor is a greenlet that runs until its next port call. The call waits, unapplied,
until a move picks it. Between two moves every other actor may run.

Moves:
- ``step``: apply a task's pending call and let it run to its next one;
- ``tick``: start one due background repetition (``Executor.every``) as a task of its own;
- ``land``: the storage applies a request whose answer was lost;
- a fault: see ``tests.simulator.faults.Fault``.
Each call advances the simulated time by ``World.call_ms``. Otherwise only a fault advances it, or
the run itself when no actor can run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from greenlet import getcurrent, greenlet

from tests.simulator.faults import Fault, Faults, Move
from tests.simulator.ports import Actor, make_ports
from tests.simulator.trace import Trace, TraceStep
from tests.simulator.world import (
    ActorCrashed,
    ActorState,
    CallKind,
    PortCall,
    SimulatedSystem,
    TickerState,
    as_label,
)
from timeline.errors import StorageUnavailableError
from timeline.ports.ports import AmbiguousWriteError, ObjectExistsError

#: Checks the system and returns the broken promises; an empty sequence means none.
Check = Callable[[SimulatedSystem], Sequence[object]]

_CALL_FAULTS = {
    CallKind.READ: (Fault.UNAVAILABLE,),
    CallKind.CREATE: (
        Fault.UNAVAILABLE,
        Fault.AMBIGUOUS_APPLIED,
        Fault.AMBIGUOUS_LOST,
        Fault.AMBIGUOUS_LATE,
        Fault.DUPLICATED,
    ),
    CallKind.CHANGE: (Fault.UNAVAILABLE, Fault.UNAVAILABLE_AFTER),
    CallKind.WAIT: (),
}
_CRASHES = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER)
_BY_VALUE = {fault.value: fault for fault in Fault}


class SimTask:
    """One line of control of an actor: its body, or one run of a ticker."""

    __slots__ = ("actor", "done", "glet", "move", "number", "pending", "started", "ticker")

    def __init__(self, actor: ActorState, work: Callable[[], object], number: int) -> None:
        self.actor = actor
        self.glet = greenlet(work)
        self.pending: PortCall | None = None
        self.done = False
        self.started = False
        self.ticker: TickerState | None = None
        self.number = number
        self.move: Move = ("step", number)


class Run:
    """
    One run of some actors on one simulated system, move by move.

    Args:
        world: Kept between runs; a recovery may run on it afterwards.
        actors: In the order in which a planned schedule runs them.
        seed: For the random draws of the actors.
        faults: Budgets of faults.
    """

    def __init__(
        self,
        world: SimulatedSystem,
        actors: Sequence[Actor],
        *,
        seed: int,
        faults: Faults | None = None,
    ) -> None:
        self.world = world
        self.faults = faults or Faults()
        self.trace = Trace(scenario=world.scenario, seed=seed)
        self._budgets = dict(self.faults.budgets or {})
        self._waiting = [actor for actor in actors if actor.start_after is not None]
        self._seed = seed
        self._hub = getcurrent()
        self._current: SimTask | None = None
        self._actors: list[ActorState] = []
        self._tasks: list[SimTask] = []
        self._live: list[SimTask] = []
        self._chance = world.new_actor("environment", seed).random
        world.runner = self
        for actor in actors:
            if actor.start_after is None:
                self._start(actor)

    # ------------------------------------------------------------ seen by ports

    @property
    def is_inside(self) -> bool:
        return self._current is not None

    def submit(self, actor: ActorState, call: PortCall) -> object:
        task = self._current
        assert task is not None
        assert task.actor is actor, "a port is used by another actor than its own"
        task.pending = call
        return self._hub.switch()

    # ------------------------------------------------------------ moves

    @property
    def tasks(self) -> Sequence[SimTask]:
        """Every line of control there was so far; a ``step`` move names its place here."""
        return self._tasks

    def plain_moves(self) -> list[Move]:
        """Moves without a fault; advances time when no actor can run; empty at the end."""
        while True:
            moves: list[Move] = []
            bodies_left = False
            for task in self._live:
                if task.ticker is None:
                    bodies_left = True
                call = task.pending
                if call is not None and (call.ready is None or call.ready()):
                    moves.append(task.move)
            if bodies_left:
                self._add_due_ticks(moves)
            if self.world.late:
                moves.append(("land", 0))
            if moves or not self._live or not self._sleep_until_next(bodies_left):
                return moves

    def fault_moves(self) -> list[Move]:
        """Faults that the budgets allow and that fit the pending calls."""
        left = {fault for fault, count in self._budgets.items() if count > 0}
        victims = self.faults.victims
        moves: list[Move] = []
        for task in self._live:
            call = task.pending
            if call is None or (victims and task.actor.name not in victims):
                continue
            fitting = _CALL_FAULTS[call.kind] if call.port == "storage" else ()
            ready = call.ready is None or call.ready()
            moves += [
                (fault.value, task.number)
                for fault in fitting + (_CRASHES if ready else _CRASHES[:1])
                if fault in left
            ]
        if Fault.LEASE_LOST in left and any(
            lock.token is not None for lock in self.world.locks.values()
        ):
            moves.append((Fault.LEASE_LOST.value, 0))
        moves += [(f.value, 0) for f in (Fault.TIME_JUMP, Fault.POWER_CUT) if f in left]
        if Fault.WALL_JUMP in left:
            moves += [
                (Fault.WALL_JUMP.value, actor.index) for actor in self._actors if not actor.dead
            ]
        return moves

    def task_of(self, move: Move) -> tuple[str, int] | None:
        if move[0] != "step":
            return None
        actor = self._tasks[move[1]].actor
        return (actor.name, actor.calls)

    def describe(self, move: Move) -> str:
        """``method path`` of the call that a ``step`` move would make."""
        call = self._tasks[move[1]].pending if move[0] == "step" else None
        return "" if call is None else f"{call.method} {call.path}"

    def is_running(self, actor: str) -> bool:
        """Whether the actor's own program has neither ended nor died."""
        return any(task.actor.name == actor and task.ticker is None for task in self._live)

    def do(self, move: Move) -> None:
        """Make one move; the system and the actors advance to their next calls."""
        kind, target = move
        self.trace.moves.append(move)
        self.world.step += 1
        if kind == "step":
            self._apply(self._tasks[target], None)
        elif kind == "tick":
            self._start_tick(dict(self._all_tickers())[target])
        elif kind == "land":
            landed = self.world.land()
            self._note(landed.actor, "storage.create", landed.path, "landed", "land")
        else:
            fault = _BY_VALUE[kind]
            if fault in self._budgets:
                self._budgets[fault] -= 1
            self.trace.faults[kind] = self.trace.faults.get(kind, 0) + 1
            if fault in (Fault.LEASE_LOST, Fault.TIME_JUMP, Fault.WALL_JUMP, Fault.POWER_CUT):
                self._disturb(fault, target)
            else:
                self._apply(self._tasks[target], fault)

    def close(self) -> None:
        """Crash all actors that still run; nothing more is applied."""
        for actor in self._actors:
            if not actor.dead and not actor.ended:
                self._kill(actor)
        self.world.runner = None

    def state_key(self) -> tuple[object, ...]:
        """The state that decides how this run can continue; needs ``World.exploring``."""
        return (
            self.world.digest(),
            self.world.now_ms,
            tuple((actor.name, actor.observed, actor.dead) for actor in self._actors),
            tuple(
                (task.number, task.pending.wake_at())
                for task in self._live
                if task.pending is not None and task.pending.wake_at is not None
            ),
            tuple(
                (index, ticker.due_ms, ticker.stopped, ticker.running)
                for index, ticker in self._all_tickers()
            ),
            tuple(sorted((fault.value, count) for fault, count in self._budgets.items())),
        )

    def finish(self, check: Check | None) -> None:
        """After the last move: report a deadlock, then run the final check."""
        stuck = sorted({task.actor.name for task in self._live})
        if stuck:
            self.fail(f"no actor can run, these wait for ever: {', '.join(stuck)}")
        elif check is not None and self.trace.failure is None:
            self.judge(check)

    def judge(self, check: Check) -> None:
        """Fail when the check finds something."""
        broken = check(self.world)
        if broken:
            self.fail("; ".join(str(item) for item in broken))

    def fail(self, why: str) -> None:
        """Record a failure; the first one stays."""
        if self.trace.failure is None:
            self.trace.failure = why

    # ------------------------------------------------------------ actors

    def _start(self, spec: Actor) -> None:
        actor = self.world.new_actor(
            spec.name,
            self._seed,
            clock_offset_ms=spec.clock_offset_ms,
            drift_ppm=spec.drift_ppm,
        )
        self._actors.append(actor)
        ports = make_ports(
            self.world, actor, shuffled=spec.shuffled, atomic_create=spec.atomic_create
        )

        def body() -> None:
            try:
                spec.body(ports)
                self.trace.outcomes[spec.name] = "returned"
            except ActorCrashed:
                self.trace.outcomes[spec.name] = "crashed"
            except Exception as error:  # noqa: BLE001 - judged against what the scenario allows
                self.trace.outcomes[spec.name] = type(error).__name__
                self.trace.errors[spec.name] = error
                if not isinstance(error, spec.may_raise):
                    self.fail(f"{spec.name} raised {type(error).__name__}: {error}")

        self._add_task(actor, body, None)

    def _start_tick(self, ticker: TickerState) -> None:
        ticker.running = True
        ticker.due_ms = self.world.now_ms + ticker.interval_ms
        if self.world.exploring:
            ticker.actor.observe("tick")
        self._note(ticker.actor.name, "executor.tick", "", "started", "")

        def body() -> None:
            try:
                ticker.work()
            except ActorCrashed:
                pass
            finally:
                ticker.running = False

        self._add_task(ticker.actor, body, ticker)

    def _add_task(
        self, actor: ActorState, work: Callable[[], object], ticker: TickerState | None
    ) -> None:
        task = SimTask(actor, work, len(self._tasks))
        task.ticker = ticker
        self._tasks.append(task)
        self._live.append(task)
        self._resume(task, None, None)

    def _resume(self, task: SimTask, answer: object, error: BaseException | None) -> None:
        task.pending = None
        self._hub, before = getcurrent(), self._current
        self._current = task
        try:
            if error is None:
                # A greenlet's first switch passes arguments to its function, later ones answers.
                task.glet.switch(answer) if task.started else task.glet.switch()
            else:
                task.glet.throw(error)
        finally:
            self._current = before
            task.started = True
        if task.glet.dead:
            self._ended(task)

    def _ended(self, task: SimTask) -> None:
        task.done = True
        if task in self._live:
            self._live.remove(task)
        actor = task.actor
        if task.ticker is not None:
            return
        actor.ended = True
        if not actor.dead:  # the process exits, its threads with it
            self._kill(actor)
        for spec in tuple(self._waiting):
            if spec.start_after == actor.name:
                self._waiting.remove(spec)
                self._start(spec)

    def _throw_away(self, task: SimTask) -> None:
        if task.done:
            return
        self._resume(task, None, ActorCrashed(task.actor.name))
        if not task.done:  # it swallowed the crash and asked again: never resumed any more
            task.done = True
            self._live.remove(task)

    def _kill(self, actor: ActorState) -> None:
        self.world.bury(actor)
        for task in tuple(self._live):
            if task.actor is actor:
                self._throw_away(task)

    # ------------------------------------------------------------ applying

    def _apply(self, task: SimTask, fault: Fault | None) -> None:
        call, actor = task.pending, task.actor
        assert call is not None
        actor.calls += 1
        self.trace.calls[actor.name] = actor.calls
        self.world.now_ms += self.world.call_ms
        answer: object = None
        error: BaseException | None = None
        if fault is None or fault in _APPLIED_FIRST:
            try:
                answer = call.apply()
            except Exception as raised:  # noqa: BLE001 - the port's answer, handed to the caller
                error = raised
        if fault is not None:
            error = self._faulty_answer(fault, call, error)
        fault_name = "" if fault is None else fault.value
        shown = error if error is not None else answer
        outcome = as_label(shown)
        self._note(actor.name, f"{call.port}.{call.method}", call.path, outcome, fault_name)
        if self.world.exploring:
            actor.observe((task.number, call.method, call.path, fault_name, repr(shown)))
        if isinstance(error, ActorCrashed):
            self._kill(actor)
        else:
            self._resume(task, answer, error)

    def _faulty_answer(
        self, fault: Fault, call: PortCall, error: BaseException | None
    ) -> BaseException:
        if fault in _CRASHES:
            return ActorCrashed(call.path)
        if fault in (Fault.UNAVAILABLE, Fault.UNAVAILABLE_AFTER):
            return StorageUnavailableError("the simulated storage did not answer", path=call.path)
        if fault is Fault.DUPLICATED:
            return error or ObjectExistsError(call.path)
        if fault is Fault.AMBIGUOUS_LATE and call.late is not None:
            call.late()
        return AmbiguousWriteError(call.path)

    def _disturb(self, fault: Fault, target: int) -> None:
        world, who = self.world, "environment"
        if fault is Fault.LEASE_LOST:
            for lock in world.locks.values():
                if lock.token is not None:
                    who, lock.token = lock.actor, None
        elif fault is Fault.TIME_JUMP:
            world.now_ms += self.faults.time_jump_ms
        elif fault is Fault.WALL_JUMP:
            for actor in self._actors:
                if actor.index == target:
                    way = self._chance.choice((-1, 1))
                    actor.clock_offset_ms += way * self.faults.wall_jump_ms
                    who = actor.name
        else:
            for actor in list(self._actors):
                if not actor.dead and not actor.ended:
                    self._kill(actor)
            world.cut_power(self._chance)
        self._note(who, "environment", "", "", fault.value)

    def _note(self, actor: str, call: str, path: str, outcome: str, fault: str) -> None:
        self.trace.steps.append(TraceStep(actor, call, path, outcome, fault))

    # ------------------------------------------------------------ time and background work

    def _all_tickers(self) -> Iterator[tuple[int, TickerState]]:
        index = 0
        for actor in self._actors:
            for ticker in actor.tickers:
                yield index, ticker
                index += 1

    def _add_due_ticks(self, moves: list[Move]) -> None:
        """Asked before every move, hence written out: the numbers are those of ``_all_tickers``."""
        now_ms, index = self.world.now_ms, 0
        for actor in self._actors:
            for ticker in actor.tickers:
                if ticker.due_ms <= now_ms and not ticker.stopped and not ticker.running:
                    moves.append(("tick", index))
                index += 1

    def _sleep_until_next(self, bodies_left: bool) -> bool:
        """Move time to the next thing that waits for it; False when nothing does."""
        wakes = [
            wake
            for task in self._live
            if task.pending is not None and task.pending.wake_at is not None
            for wake in [task.pending.wake_at()]
            if wake is not None
        ]
        if bodies_left:
            wakes += [
                ticker.due_ms
                for _, ticker in self._all_tickers()
                if not ticker.stopped and not ticker.running
            ]
        if not wakes:
            return False
        self.world.now_ms = max(self.world.now_ms, min(wakes))
        return True


_APPLIED_FIRST = frozenset(
    {Fault.CRASH_AFTER, Fault.UNAVAILABLE_AFTER, Fault.AMBIGUOUS_APPLIED, Fault.DUPLICATED}
)
