"""Each simulated port keeps the port's contract and the dead touch nothing."""

from __future__ import annotations

import uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.simulator.faults import Fault, Faults, PlannedFault, PlannedPolicy
from tests.simulator.ports import ActorPorts, make_ports
from tests.simulator.scheduler import Actor, run
from tests.simulator.trace import Trace
from tests.simulator.world import START_MS, ActorCrashed, SimulatedSystem
from timeline.errors import LeaseLostError, LockTimeoutError, StorageUnavailableError
from timeline.ports.ports import AmbiguousWriteError, ObjectExistsError, ObjectMissingError


def outside() -> tuple[SimulatedSystem, ActorPorts]:
    world = SimulatedSystem()
    return world, make_ports(world, world.new_actor("a", 0))


def run_planned(
    world: SimulatedSystem, *actors: Actor, fault: Fault | None = None, call: int = 0
) -> Trace:
    planned = [] if fault is None else [PlannedFault(actor=actors[0].name, call=call, fault=fault)]
    return run(world, actors, policy=PlannedPolicy(planned))


def test_storage_outside_a_run_answers_at_once() -> None:
    world, ports = outside()
    ports.storage.create("a/b/c", b"1")
    assert ports.storage.read("a/b/c") == b"1"
    assert [(entry.name, entry.is_folder) for entry in ports.storage.list("a")] == [("b", True)]
    assert [entry.size_bytes for entry in ports.storage.list("a/b")] == [1]
    assert ports.storage.list("nowhere") == []
    with pytest.raises(ObjectExistsError):
        ports.storage.create("a/b/c", b"2")
    with pytest.raises(ObjectMissingError):
        ports.storage.read("a/b")
    ports.storage.delete("a/b/c")
    ports.storage.delete("a/b/c")
    assert ports.storage.list("a") == []
    assert [change.kind for change in world.journal] == ["create", "delete"]


def test_the_version_of_a_name_never_repeats() -> None:
    _, ports = outside()
    versions = []
    for data in (b"1", b"2"):
        ports.storage.write("x", data)
        entry = ports.storage.stat("x")
        assert entry is not None
        versions.append(entry.version)
        ports.storage.delete("x")
    assert versions == ["1", "2"]


def test_an_output_file_is_complete_after_close_and_missing_after_an_error() -> None:
    world, ports = outside()
    with ports.storage.open_output("p/f") as sink:
        sink.write(b"rows")
        assert world.files["p/f"].data == b""
    assert ports.storage.open_input("p/f").read() == b"rows"
    with pytest.raises(ValueError), ports.storage.open_output("p/g"):
        raise ValueError
    assert world.paths_below("p") == ["p/f"]
    with pytest.raises(ObjectExistsError):
        ports.storage.open_output("p/f")


def test_a_power_cut_keeps_synced_files() -> None:
    def body(ports: ActorPorts) -> None:
        ports.storage.create("kept", b"whole")
        ports.storage.create("loose", b"whole", durable=False)
        with ports.storage.open_output("d/data") as sink:
            sink.write(b"rows")
        ports.storage.sync_folders(["d"])
        while True:
            ports.clock.sleep_ms(1000)

    kept = set()
    for seed in range(40):
        world = SimulatedSystem()
        faults = Faults(budgets={Fault.POWER_CUT: 1}, rate=0.2)
        trace = run(world, [Actor(name="a", body=body)], seed=seed, faults=faults)
        assert trace.outcomes == {"a": "crashed"}
        kept.add(tuple((path, entry.data) for path, entry in sorted(world.files.items())))
    assert any(("kept", b"whole") in world for world in kept)
    assert all(("kept", b"") not in world for world in kept)
    torn = {data for world in kept for path, data in world if path == "loose"}
    assert len(torn) > 2
    assert all(b"whole".startswith(data) for data in torn)


def test_calls_in_finally_of_a_crashed_actor_are_not_applied() -> None:
    after_death = []

    def body(ports: ActorPorts) -> None:
        try:
            ports.storage.create("x", b"")
        finally:
            for attempt in range(2):
                try:
                    ports.storage.delete("precious")
                except ActorCrashed:
                    after_death.append(attempt)

    for fault, expected in ((Fault.CRASH_BEFORE, False), (Fault.CRASH_AFTER, True)):
        world = SimulatedSystem()
        world.put("set-up", "precious", b"", durable=True, new=True)
        run_planned(world, Actor(name="a", body=body), fault=fault)
        assert "precious" in world.files
        assert ("x" in world.files) is expected
    assert after_death == [0, 1, 0, 1]


def test_crash_while_a_file_is_written_leaves_it_unfinished() -> None:
    def body(ports: ActorPorts) -> None:
        with ports.storage.open_output("f") as sink:
            sink.write(b"rows")

    world = SimulatedSystem()
    trace = run_planned(world, Actor(name="a", body=body), fault=Fault.CRASH_BEFORE, call=1)
    assert trace.outcomes == {"a": "crashed"}
    assert world.files["f"].data == b""


@pytest.mark.parametrize(
    ("fault", "answer", "applied"),
    [
        (Fault.UNAVAILABLE, StorageUnavailableError, False),
        (Fault.AMBIGUOUS_APPLIED, AmbiguousWriteError, True),
        (Fault.AMBIGUOUS_LOST, AmbiguousWriteError, False),
        (Fault.AMBIGUOUS_LATE, AmbiguousWriteError, False),
        (Fault.DUPLICATED, ObjectExistsError, True),
    ],
)
def test_fault_of_a_create_answers_and_applies_as_named(
    fault: Fault, answer: type[Exception], applied: bool
) -> None:
    seen = []

    def body(ports: ActorPorts) -> None:
        with pytest.raises(answer):
            ports.storage.create("x", b"1")
        seen.append("x" in world.files)

    world = SimulatedSystem()
    trace = run_planned(world, Actor(name="a", body=body), fault=fault)
    assert trace.failure is None
    assert seen == [applied]
    assert ("x" in world.files) is (applied or fault is Fault.AMBIGUOUS_LATE)


def test_sleep_advances_time_only_when_no_actor_can_run() -> None:
    seen = []

    def sleeper(ports: ActorPorts) -> None:
        ports.clock.sleep_ms(5000)
        seen.append(("woken", ports.clock.monotonic_ms() - START_MS))

    def busy(ports: ActorPorts) -> None:
        for _ in range(100):
            ports.storage.stat("x")
        seen.append(("busy", ports.clock.monotonic_ms() - START_MS))

    actors = [Actor(name="s", body=sleeper), Actor(name="b", body=busy)]
    run(SimulatedSystem(), actors, seed=3).expect_ok()
    assert seen == [("busy", 100), ("woken", 5001)]


def test_wall_clock_has_the_actors_error_and_the_monotonic_clock_has_not() -> None:
    world = SimulatedSystem()
    ports = make_ports(world, world.new_actor("a", 0, clock_offset_ms=-3000))
    assert ports.clock.now_ms() == START_MS - 3000
    assert ports.clock.monotonic_ms() == START_MS
    fast = make_ports(world, world.new_actor("b", 0, drift_ppm=100))
    before = fast.clock.monotonic_ms()
    world.now_ms += 100_000
    assert fast.clock.monotonic_ms() - before == 100_010


def test_ids_are_readable_uuids_and_unique_over_actors() -> None:
    world = SimulatedSystem()
    first = make_ports(world, world.new_actor("a", 0)).ids
    other = make_ports(world, world.new_actor("a", 0)).ids
    assert first.uuid() == "aaaa0001-0000-4000-8000-000000000001"
    assert other.uuid() == "bbbb0002-0000-4000-8000-000000000001"
    assert uuid.UUID(first.uuid()).version == 4
    assert len(first.nonce()) == 32
    assert 0 <= first.jitter() < 1
    assert first.identity().writer_id != other.identity().writer_id


def test_lock_is_exclusive_until_released() -> None:
    holders: list[str] = []

    def body(ports: ActorPorts) -> None:
        for _ in range(3):
            with ports.lock.acquire("test") as lease:
                holders.append(ports.state.name)
                ports.storage.stat("x")
                lease.assert_held()
                assert holders == [ports.state.name]
                holders.clear()

    for seed in range(50):
        actors = [Actor(name=name, body=body) for name in "abc"]
        run(SimulatedSystem(), actors, seed=seed).expect_ok()


def test_lease_of_a_dead_owner_ends_and_tokens_grow() -> None:
    tokens = []

    def holder(ports: ActorPorts) -> None:
        tokens.append(ports.lock.acquire("first").fencing_token)
        ports.storage.stat("x")

    def waiter(ports: ActorPorts) -> None:
        tokens.append(ports.lock.acquire("second").fencing_token)
        tokens.append(ports.clock.monotonic_ms() - START_MS)

    world = SimulatedSystem(lease_ms=10_000)
    actors = [Actor(name="h", body=holder), Actor(name="w", body=waiter)]
    run_planned(world, *actors, fault=Fault.CRASH_BEFORE, call=1)
    assert tokens == [1, 2, 10_003]


def test_lost_lease_is_noticed_by_its_owner() -> None:
    def body(ports: ActorPorts) -> None:
        lease = ports.lock.acquire("test")
        while True:
            lease.assert_held()

    faults = Faults(budgets={Fault.LEASE_LOST: 1}, rate=0.2)
    actor = Actor(name="a", body=body, may_raise=(LeaseLostError,))
    trace = run(SimulatedSystem(), [actor], faults=faults)
    assert trace.outcomes == {"a": "LeaseLostError"}


def test_waiting_for_the_lock_ends_with_its_budget() -> None:
    def holder(ports: ActorPorts) -> None:
        with ports.lock.acquire("long"):
            ports.clock.sleep_ms(100_000)

    def waiter(ports: ActorPorts) -> None:
        ports.lock.acquire("short")

    actors = [
        Actor(name="h", body=holder),
        Actor(name="w", body=waiter, may_raise=(LockTimeoutError,)),
    ]
    trace = run_planned(SimulatedSystem(lock_budget_ms=60_000), *actors)
    assert trace.outcomes == {"h": "returned", "w": "LockTimeoutError"}


def test_ticks_follow_their_interval_and_end_with_their_actor() -> None:
    def body(ports: ActorPorts) -> None:
        ticker = ports.executor.every(1000, lambda: ports.storage.write("beat", b""))
        ports.clock.sleep_ms(3500)
        ticker.stop()
        ports.clock.sleep_ms(3500)
        ports.executor.every(1000, lambda: ports.storage.write("beat", b""))
        ports.clock.sleep_ms(1500)

    world = SimulatedSystem()
    run_planned(world, Actor(name="a", body=body)).expect_ok()
    assert len(world.journal) == 4


def test_no_tick_runs_after_the_actor_died() -> None:
    def body(ports: ActorPorts) -> None:
        ports.executor.every(10, lambda: ports.storage.write("beat", b""))
        for _ in range(20):
            ports.clock.sleep_ms(10)

    def other(ports: ActorPorts) -> None:
        ports.clock.sleep_ms(1000)

    for seed in range(30):
        world = SimulatedSystem()
        actors = [Actor(name="a", body=body), Actor(name="b", body=other)]
        faults = Faults(budgets={Fault.CRASH_AFTER: 1}, rate=0.1, victims=frozenset({"a"}))
        trace = run(world, actors, seed=seed, faults=faults)
        deaths = [n for n, step in enumerate(trace.steps) if step.fault == "crash_after"]
        if deaths:
            assert {step.actor for step in trace.steps[deaths[0] + 1 :]} <= {"b"}


def test_failed_tick_ends_in_an_event() -> None:
    def body(ports: ActorPorts) -> None:
        ports.executor.every(10, lambda: ports.storage.create("x", b""))
        ports.clock.sleep_ms(25)

    world = SimulatedSystem()
    run_planned(world, Actor(name="a", body=body)).expect_ok()
    assert world.counters["executor.tick_failed"] == 1


def test_map_gives_results_in_task_order_and_raises_after_all_ended() -> None:
    done: list[int] = []

    def work(task: int) -> int:
        done.append(task)
        if task == 2:
            raise ValueError(task)
        return task * 10

    world = SimulatedSystem()
    ports = make_ports(world, world.new_actor("a", 0), shuffled=True)
    assert ports.executor.map(lambda task: task * 10, range(9)) == [n * 10 for n in range(9)]
    with pytest.raises(ValueError):
        ports.executor.map(work, range(9))
    assert sorted(done) == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert done != sorted(done)


def test_actor_starts_after_the_death_of_another() -> None:
    def body(ports: ActorPorts) -> None:
        ports.storage.create(ports.state.name, b"")

    world = SimulatedSystem()
    recovery = Actor(name="r", body=body, start_after="a")
    trace = run_planned(world, Actor(name="a", body=body), recovery, fault=Fault.CRASH_BEFORE)
    assert trace.outcomes == {"a": "crashed", "r": "returned"}
    assert sorted(world.files) == ["r"]


def test_parquet_is_written_and_read_through_the_simulated_storage() -> None:
    table = pa.table({"k": ["a", "b"], "n": [1, 2]})
    seen = []

    def body(ports: ActorPorts) -> None:
        with ports.storage.open_output("p/f.parquet") as sink:
            pq.write_table(table, sink)
        with ports.storage.open_input("p/f.parquet") as source:
            seen.append(pq.read_table(source))

    trace = run_planned(SimulatedSystem(), Actor(name="a", body=body)).expect_ok()
    assert seen == [table]
    assert [step.call for step in trace.steps] == [
        "storage.open_output",
        "storage.close",
        "storage.open_input",
    ]


def test_a_process_that_exits_with_the_lock_leaves_a_lease_that_ends() -> None:
    def careless(ports: ActorPorts) -> None:
        ports.lock.acquire("never released")

    def waiter(ports: ActorPorts) -> None:
        ports.lock.acquire("second")

    actors = [Actor(name="c", body=careless), Actor(name="w", body=waiter)]
    trace = run_planned(SimulatedSystem(lease_ms=10_000), *actors)
    assert trace.outcomes == {"c": "returned", "w": "returned"}


def test_taking_the_own_lock_twice_times_out_and_keeps_the_error() -> None:
    def body(ports: ActorPorts) -> None:
        ports.lock.acquire("one")
        ports.lock.acquire("two")

    trace = run(SimulatedSystem(lock_budget_ms=10), [Actor(name="a", body=body)])
    assert (trace.failure or "").startswith("a raised LockTimeoutError")
    assert isinstance(trace.errors["a"], LockTimeoutError)
    assert trace.errors["a"].fields == {"holder": "a"}
