"""The remembered part of work over a storage, and the faults that every schedule still gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from filegroups.writing.workload import LocalWorkload
from filegroups.writing.write import write
from tests.simulation.conversations import Conversations
from tests.simulation.engine_kit import open_table, plan_for, ports_of, rows_of, seeded
from tests.simulation.remembered_workload import RememberedWorkload
from tests.simulator.faults import Fault, Faults, PlannedFault, PlannedPolicy
from tests.simulator.ports import Actor, ActorPorts, make_ports
from tests.simulator.scheduler import run
from tests.simulator.trace import Trace
from tests.simulator.world import SimulatedSystem
from timeline.errors import StorageUnavailableError
from timeline.ports.ports import ObjectMissingError
from timeline.ports.ports import Ports as EngineWorld


class Doubling:
    """Reads ``in`` twice over into ``out``; counts how often it was really done."""

    def __init__(self) -> None:
        self.done = 0

    def __call__(self, world: EngineWorld) -> int:
        self.done += 1
        with world.storage.open_input("in") as source:
            data = source.read()
        with world.storage.open_output("out") as sink:
            sink.write(data + data)
        return 2 * len(data)


def world_of(files: Mapping[str, bytes]) -> SimulatedSystem:
    world = SimulatedSystem()
    for path, data in files.items():
        world.put("founder", path, data, durable=True, new=True)
    return world


def ask(
    world: SimulatedSystem,
    talks: Conversations[int],
    work: Callable[[EngineWorld], int],
    planned: PlannedFault | None = None,
) -> tuple[Trace, list[int]]:
    """Let an actor ask for the result of the work, by the key ``k``."""
    results: list[int] = []

    def body(ports: ActorPorts) -> None:
        results.append(talks.result("k", ports_of(ports), work))

    trace = run(
        world,
        [Actor(name="A", body=body, may_raise=(StorageUnavailableError, ObjectMissingError))],
        faults=Faults(budgets={} if planned is None else {planned.fault: 1}),
        policy=PlannedPolicy(() if planned is None else (planned,)),
    )
    return trace.expect_ok(), results


def test_remembered_work_makes_every_call_of_the_real_one() -> None:
    talks: Conversations[int] = Conversations(8)
    work = Doubling()
    traces, worlds = [], [world_of({"in": b"ab"}), world_of({"in": b"ab"})]
    for world in worlds:
        trace, results = ask(world, talks, work)
        traces.append(trace.hash)
        assert results == [4]
    assert work.done == 1
    assert traces[0] == traces[1]
    assert [world.files["out"].data for world in worlds] == [b"abab", b"abab"]


def test_an_unheard_answer_is_remembered_along_with_the_other_one() -> None:
    talks: Conversations[int] = Conversations(8)
    work = Doubling()
    for data in (b"ab", b"xyz", b"ab", b"xyz"):
        world = world_of({"in": data})
        assert ask(world, talks, work)[1] == [2 * len(data)]
        assert world.files["out"].data == data + data
    assert work.done == 2


@pytest.mark.parametrize("call", [0, 1, 2])
@pytest.mark.parametrize(
    "fault", [Fault.UNAVAILABLE, Fault.UNAVAILABLE_AFTER, Fault.CRASH_BEFORE, Fault.CRASH_AFTER]
)
def test_a_fault_within_remembered_work_ends_as_in_the_real_one(fault: Fault, call: int) -> None:
    if fault is Fault.UNAVAILABLE_AFTER and call == 0:
        return  # of a read there is nothing that could be applied first
    planned = PlannedFault(actor="A", call=call, fault=fault)
    plain, known = Conversations[int](8), Conversations[int](8)
    ask(world_of({"in": b"ab"}), known, Doubling())
    worlds = [world_of({"in": b"ab"}), world_of({"in": b"ab"})]
    real, remembered = (
        ask(world, talks, Doubling(), planned)[0]
        for world, talks in zip(worlds, (plain, known), strict=True)
    )
    assert remembered.hash == real.hash
    assert remembered.outcomes == real.outcomes
    assert remembered.faults == {fault.value: 1}
    contents = [{path: one.data for path, one in world.files.items()} for world in worlds]
    assert contents[0] == contents[1]


def test_failed_work_is_not_remembered() -> None:
    talks: Conversations[int] = Conversations(8)
    work = Doubling()
    assert ask(world_of({}), talks, work)[0].outcomes == {"A": "ObjectMissingError"}
    assert ask(world_of({"in": b"ab"}), talks, work)[1] == [4]
    assert work.done == 2


def test_a_key_that_does_not_determine_the_work_is_reported() -> None:
    talks: Conversations[int] = Conversations(8)

    def asks(*paths: str) -> Callable[[EngineWorld], int]:
        return lambda world: sum(world.storage.stat(path) is None for path in paths)

    world = seeded("conversations")
    ports = ports_of(make_ports(world, world.new_actor("A", seed=0)))
    assert talks.result("k", ports, asks("one", "two")) == 2
    world.put("A", "one", b"", durable=True, new=True)
    with pytest.raises(AssertionError, match=r"before .* was asked, now .*"):
        talks.result("k", ports, asks("other"))


@pytest.mark.parametrize(
    ("used", "done"),
    [
        ("abacab", "abcb"),  # of those used once the first is dropped
        ("aabcda", "abcd"),  # before those used again
        ("aabbcbab", "abca"),  # of those the last to be used stays
    ],
)
def test_work_used_once_is_evicted_before_work_used_again(used: str, done: str) -> None:
    talks: Conversations[str] = Conversations(2)
    really: list[str] = []

    def answer_of(key: str) -> str:
        def work(_: EngineWorld) -> str:
            really.append(key)
            return key.upper()

        return talks.result(key, ports, work)

    world = SimulatedSystem()
    ports = ports_of(make_ports(world, world.new_actor("A", seed=0)))
    assert "".join(answer_of(key) for key in used) == used.upper()
    assert "".join(really) == done


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_remembered_write_is_the_shipped_one_call_by_call(shuffled: bool) -> None:
    hashes, contents = [], []
    for kind in (LocalWorkload, RememberedWorkload, RememberedWorkload):
        world = seeded("remembered", ("a1", "b1"))

        def body(ports: ActorPorts, kind: type[LocalWorkload] = kind) -> None:
            context = open_table(ports_of(ports))
            for operation, keys in (("one", ("a1", "b1", "c1")), ("two", ("a1", "a2"))):
                rows = rows_of(operation, keys)
                write(context, plan_for(operation), kind(context.ports, rows))

        actor = Actor(name="A", body=body, shuffled=shuffled)
        hashes.append(run(world, [actor], seed=3).expect_ok().hash)
        contents.append({path: one.data for path, one in world.files.items()})
    assert hashes[0] == hashes[1] == hashes[2]
    assert contents[0] == contents[1] == contents[2]
