"""
A reader that pins a state and a cleaner that wants its files, in every order (RDL-1, CLN-1).

The reader either gets an error that its state is being cleaned, or reads every row of it at any
time. Both are killed at every call. Two mutants are found: a cleaner that checked the leases
before its slot, and a reader that does not check the commit log after its lease.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest

from filegroups.table import TableReader
from tests.simulation.engine_kit import (
    LIMITS,
    RETAINED,
    EngineObserver,
    Job,
    MakeContext,
    cleaner,
    heal,
    open_table,
    play,
    ports_of,
    seeded,
    writer,
)
from tests.simulator.faults import Chooser, Fault, Faults, Move, PlannedPolicy
from tests.simulator.invariants import Violation
from tests.simulator.ports import Actor, ActorPorts
from tests.simulator.scheduler import crash_points, run
from tests.simulator.script import ScriptStage, Until, UntilEnd
from tests.simulator.trace import Trace
from tests.simulator.world import SimulatedSystem
from timeline.commit_log import CommitLog
from timeline.context import TableContext
from timeline.entries import timeline_entries
from timeline.errors import (
    HoodooError,
    InstantNotFoundError,
    SnapshotExpiredError,
    StorageUnavailableError,
)
from timeline.model.file_names import DEFERRED_DELETES, READERS
from timeline.ports.ports import Names
from timeline.ports.ports import Ports as EngineWorld

LEASE_MS = 600
LEASING = replace(LIMITS, reader_lease_ms=LEASE_MS)
Outcomes = list[str]  # outcomes of reads; shared by a run's reader and its check


def leasing(world: EngineWorld) -> TableContext:
    return open_table(world, LEASING)


def holder(outcomes: Outcomes, make_context: MakeContext = leasing, *, pause_ms: int = 0) -> Actor:
    """Holds the state after the first write and reads it twice."""

    def body(ports: ActorPorts) -> None:
        table = TableReader(make_context(ports_of(ports)))
        first = timeline_entries(table.context, archived=False)[0].requested_time
        try:
            state = table.as_of(first).pin()
        except (SnapshotExpiredError, InstantNotFoundError):
            outcomes.append("refused")
            return
        except StorageUnavailableError:
            return
        with state:
            for _ in range(2):
                try:
                    rows = state.to_arrow(columns=["id", "operation"]).to_pylist()
                except HoodooError as error:
                    outcomes.append(f"broken: {error.kind}")
                    return
                if {row["id"]: row["operation"] for row in rows} != {"a1": "seed", "b1": "seed"}:
                    outcomes.append(f"broken: {rows}")
                ports.clock.sleep_ms(pause_ms)
            outcomes.append("read")

    return Actor(name="reader", body=body)


@cache
def superseded() -> SimulatedSystem:
    """Of one file group three slices that a clean may take, the first of them read here."""
    world = seeded("reader-lease")
    jobs = [Job(operation=f"w{number}", keys=("a1",)) for number in range(4)]
    play(world, [writer("old", jobs)], [])
    return world


def both(
    outcomes: Outcomes,
    *,
    reading: MakeContext = leasing,
    cleaning: MakeContext = leasing,
    pause_ms: int = 0,
) -> tuple[SimulatedSystem, Sequence[Actor]]:
    outcomes.clear()
    reader = holder(outcomes, reading, pause_ms=pause_ms)
    world = superseded().copy("reader-lease")
    return world, [reader, cleaner(rounds=1, pause_ms=0, make_context=cleaning)]


class Blocks(PlannedPolicy):
    """The cleaner makes some calls, the reader some; then the cleaner ends, then the reader."""

    def __init__(self, of_cleaner: int, of_reader: int) -> None:
        super().__init__()
        self._order = ["cleaner"] * of_cleaner + ["reader"] * of_reader
        self._made = 0

    def choose(self, plain: Sequence[Move], run: Chooser) -> Move:
        wanted = self._order[self._made] if self._made < len(self._order) else "cleaner"
        self._made += 1
        mine = [move for move in plain if (run.task_of(move) or ("", 0))[0] == wanted]
        return super().choose(mine or plain, run)


def interrupted(outcomes: Outcomes, **mutant: MakeContext) -> Iterator[Trace]:
    """Every order in which each of the two is interrupted once at most."""
    world, actors = both(outcomes, **mutant)
    calls = run(world, actors, policy=PlannedPolicy()).calls
    for of_cleaner, of_reader in product(range(calls["cleaner"]), range(calls["reader"])):
        world, actors = both(outcomes, **mutant)
        policy = Blocks(of_cleaner, of_reader)
        yield run(world, actors, policy=policy, check_end=unbroken(outcomes))


def unbroken(outcomes: Outcomes) -> Callable[[SimulatedSystem], list[Violation]]:
    def check(_: SimulatedSystem) -> list[Violation]:
        return [Violation(invariant="RDL-1", found=one) for one in outcomes if "broken" in one]

    return check


@pytest.mark.spec("RDL-1")
@pytest.mark.spec("CLN-1")
def test_a_pinned_snapshot_is_read_or_refused_in_every_order() -> None:
    outcomes: Outcomes = []
    endings: Counter[str] = Counter()
    for trace in interrupted(outcomes):
        assert trace.failure is None, trace.story()
        endings.update(outcomes)
    assert set(endings) == {"read", "refused"}
    assert min(endings.values()) > 20


class LeasesOfBefore:
    """A storage that always returns the leases of the first listing."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._leases = inner.names(READERS)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def names(self, folder: str) -> Names:
        return self._leases if folder == READERS else self._inner.names(folder)


def looks_before_its_slot(world: EngineWorld) -> TableContext:
    return leasing(replace(world, storage=LeasesOfBefore(world.storage)))


class OneLook(CommitLog):
    """Trusts its first read of the commit log."""

    def head(self) -> int:
        return self.known_head or super().head()


def does_not_look_again(world: EngineWorld) -> TableContext:
    context = leasing(world)
    return replace(context, commit_log=OneLook(world, context.table_id))


@pytest.mark.parametrize(
    "mutant", [{"cleaning": looks_before_its_slot}, {"reading": does_not_look_again}]
)
def test_mutant_that_checks_leases_too_early_is_found(mutant: dict[str, MakeContext]) -> None:
    assert any("RDL-1" in str(trace.failure) for trace in interrupted([], **mutant))


@pytest.mark.parametrize("victim", ["reader", "cleaner"])
def test_reader_and_cleaner_killed_at_every_call(victim: str) -> None:
    """The next process finishes the work of a dead one: nothing stays owed for ever."""
    outcomes: Outcomes = []
    for case in crash_points(lambda: both(outcomes), victim, check_end=unbroken(outcomes)):
        assert case.trace.failure is None, f"call {case.call}: {case.trace.failure}"
        heal(case.world, EngineObserver(case.world, commits_retained=RETAINED)).expect_ok(last=100)
        assert case.world.paths_below(DEFERRED_DELETES) == [], f"call {case.call}"


def test_the_helper_of_a_dead_cleaner_keeps_pinned_files() -> None:
    """HELP-1: the cleaner dies right after its slot; a writer applies that slot."""
    patient = replace(LIMITS, reader_lease_ms=60_000)
    outcomes: Outcomes = []
    world, actors = both(outcomes, reading=lambda ports: open_table(ports, patient), pause_ms=1)
    helper = writer("B", [Job(operation="B", keys=("b1",))])
    stages: list[ScriptStage] = [
        Until("reader", "sleep"),
        Until("cleaner", "clean.requested", Fault.CRASH_BEFORE),
        UntilEnd("B"),
    ]
    trace = play(world, [*actors, helper], stages)
    assert trace.failure is None, trace.story()
    assert outcomes == ["read"]
    assert len(world.paths_below(DEFERRED_DELETES)) == 1


def test_a_pinned_snapshot_outlives_its_lease_by_renewals() -> None:
    outcomes: Outcomes = []
    for seed in range(20):
        world, actors = both(outcomes, pause_ms=2 * LEASE_MS)
        faults = Faults(budgets={Fault.AMBIGUOUS_LOST: 1, Fault.AMBIGUOUS_LATE: 1}, rate=0.1)
        facts = EngineObserver(world, commits_retained=RETAINED)
        trace = run(
            world,
            actors,
            seed=seed,
            faults=faults,
            check_step=facts.check_step,
            check_end=unbroken(outcomes),
        )
        assert trace.failure is None, f"seed {seed}: {trace.failure}"
