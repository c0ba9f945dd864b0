"""
Holes between writers that disagree or insert the same: settings, single writers, claims, keys.

Holes 3, 9, 13 of the list of correctness holes, and SGL-1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from filegroups.keys.bucketing import SizeSettings
from tests.simulation import mutants
from tests.simulation.engine_kit import (
    FILES,
    LIMITS,
    EngineObserver,
    Job,
    MakeContext,
    events_of,
    found_by,
    new_world,
    open_table,
    play,
    ports_of,
    rows_now,
    seeded,
    writer,
)
from tests.simulator.faults import Fault
from tests.simulator.ports import Actor, ActorPorts
from tests.simulator.scheduler import explore
from tests.simulator.script import ScriptStage, Until, UntilEnd
from tests.simulator.trace import Trace
from tests.simulator.world import SimulatedSystem
from timeline.context import TableContext
from timeline.errors import WriterDisagreementError
from timeline.model.commit_metadata import ConcurrencyMode, WriteOperation
from timeline.ports.ports import Ports as EngineWorld
from timeline.writer_registry import register_process

CREATE = "create .hoodie/.hoodoo/slots/"
Enter = Callable[[TableContext, Mapping[str, str]], bool]


# ---------------------------------------------------------------- hole 13


def real_enter(context: TableContext, agreement: Mapping[str, str]) -> bool:
    try:
        register_process(context, agreement)
    except WriterDisagreementError:
        return False
    return True


def both_entered(how: Enter) -> Callable[[SimulatedSystem], list[str]]:
    """The check of an exploration: two that disagree must not both have entered."""

    def check(world: SimulatedSystem) -> list[str]:
        entered = [event["who"] for event in events_of(world, "sim.entered")]
        return ["both writers were let in"] if len(entered) > 1 else []

    return check


def two_newcomers(how: Enter) -> tuple[SimulatedSystem, list[Actor]]:
    """One locks in its process, the other by ZooKeeper; both start at the same moment."""
    world = new_world("hole-13")

    def newcomer(name: str, provider: str) -> Actor:
        def body(ports: ActorPorts) -> None:
            if how(open_table(ports_of(ports)), {"lock_provider": provider}):
                ports.events.emit("sim.entered", who=name)
                ports.clock.sleep_ms(1)  # both must be there at the end, or one has left

        return Actor(name=name, body=body)

    return world, [newcomer("A", "inprocess"), newcomer("B", "zookeeper")]


def test_hole_13_two_writers_with_different_locks_never_both_enter() -> None:
    """REG-1, in every interleaving: each compares, writes its entry and compares again."""
    seen = explore(lambda: two_newcomers(real_enter), check_end=both_entered(real_enter))
    assert seen.failed is None
    assert seen.complete
    assert seen.states > 50


def test_hole_13_mutant_that_compares_once_is_found() -> None:
    seen = explore(
        lambda: two_newcomers(mutants.enter_with_one_look),  # type: ignore[arg-type]
        check_end=both_entered(real_enter),
    )
    assert seen.failed is not None
    assert "both writers were let in" in str(seen.failed.failure)


def single(world: EngineWorld) -> TableContext:
    return open_table(world, replace(LIMITS, mode=ConcurrencyMode.SINGLE_WRITER))


def second_writer(make_context: MakeContext) -> tuple[SimulatedSystem, Trace]:
    world = seeded("hole-13-single")
    actors = [
        writer("A", [Job(operation="A0", keys=("a1",)), Job(operation="A1", keys=("a1",))],
               make_context=make_context),
        writer("B", [Job(operation="B", keys=("a1", "a2"))], make_context=make_context),
    ]  # fmt: skip
    stages: list[ScriptStage] = [Until("A", CREATE), Until("A", "open_output"), UntilEnd("B")]
    return world, play(world, actors, [*stages, UntilEnd("A")])


@pytest.mark.spec("SGL-1")
def test_hole_13_a_single_writer_detects_a_second_one_and_no_row_is_lost() -> None:
    """SGL-1: the slots decide in this mode too, so it is a warning that names the other writer."""
    world, trace = second_writer(single)
    assert found_by(world, trace) == ""
    noticed = events_of(world, "writer.second_noticed")
    assert [(event["writer"], event["number"]) for event in noticed] == [
        ("hole-13-single (pid 1005 on simulated)", 3)
    ]
    assert rows_now(world)["a2"] == "B"


def test_hole_13_writers_that_expect_each_other_report_nothing() -> None:
    world, _ = second_writer(open_table)
    assert events_of(world, "writer.second_noticed") == []


# ---------------------------------------------------------------- hole 3


def same_new_key(make_context: MakeContext) -> tuple[SimulatedSystem, Trace]:
    """Both insert a9 into an empty partition, each into a file group of its own."""
    world = new_world("hole-3")
    actors = [
        writer("A", [Job(operation="A", keys=("a9",))]),
        writer("B", [Job(operation="B", keys=("a9",))], make_context=make_context),
    ]
    stages: list[ScriptStage] = [Until("B", "acquire"), UntilEnd("A"), UntilEnd("B")]
    return world, play(world, actors, stages)


def test_hole_3_same_new_key_from_two_upserts_gets_one_row() -> None:
    world, trace = same_new_key(open_table)
    assert trace.failure is None
    assert rows_now(world) == {"a9": "B"}
    (refusal,) = events_of(world, "write.refused")
    assert "C9" in str(refusal["why"])
    assert found_by(world, trace) == ""


def test_hole_3_mutant_that_compares_no_keys_is_found() -> None:
    world, trace = same_new_key(mutants.with_chain(mutants.KeylessChain))
    assert "I14" in found_by(world, trace)


def test_hole_3_a_rebase_still_compares_keys_of_other_file_groups() -> None:
    """
    B shares one file group with A and inserts a key that A inserted into another one.

    Files of one row each, so that every new key opens a file group.
    """
    files = replace(FILES, sizes=SizeSettings(small_file_bytes=0, auto_split=False, insert_rows=1))
    world = seeded("hole-3-rebase")
    actors = [
        writer("A", [Job(operation="A", keys=("a1", "a9"), files=files)]),
        writer("B", [Job(operation="B", keys=("a1", "a9"), files=files)]),
    ]
    trace = play(world, actors, [Until("B", "acquire"), UntilEnd("A"), UntilEnd("B")])
    assert trace.failure is None
    assert rows_now(world) == {"a1": "B", "a9": "B", "b1": "seed"}


def test_hole_3_a_delete_of_an_absent_key_conflicts_with_its_first_insert() -> None:
    """
    B deletes a1 and a9; meanwhile A updates a1 and inserts a9 into another file group.

    B takes the later slot and deletes A's a1, but its base snapshot did not show A's a9. The outcome
    would fit no serial order. Their file groups do not overlap; found by a seed.
    """
    world = seeded("hole-3-delete")
    files = replace(FILES, sizes=SizeSettings(small_file_bytes=0, auto_split=False, insert_rows=1))
    actors = [
        writer("A", [Job(operation="A", keys=("a1", "a9"), files=files)]),
        writer("B", [Job(operation="B", keys=("a1", "a9"), kind=WriteOperation.DELETE)]),
    ]
    trace = play(
        world, actors, [Until("A", "acquire"), Until("B", "acquire"), UntilEnd("A"), UntilEnd("B")]
    )
    assert trace.failure is None
    assert rows_now(world) == {"b1": "seed"}


# ---------------------------------------------------------------- hole 9


def overwrite(make_context: MakeContext, other: WriteOperation) -> tuple[SimulatedSystem, Trace]:
    """A overwrites partition a, which is empty, while B writes into it."""
    world = new_world("hole-9")
    actors = [
        writer("A", [Job(operation="A", keys=("a1", "a2"), kind=WriteOperation.INSERT_OVERWRITE)],
               make_context=make_context),
        writer("B", [Job(operation="B", keys=("a1", "a2"), kind=other)]),
    ]  # fmt: skip
    stages: list[ScriptStage] = [Until("A", "acquire"), UntilEnd("B"), UntilEnd("A")]
    return world, play(world, actors, stages)


@pytest.mark.parametrize("other", [WriteOperation.INSERT_OVERWRITE, WriteOperation.INSERT])
def test_hole_9_an_overwrite_of_an_empty_partition_conflicts_with_writes_into_it(
    other: WriteOperation,
) -> None:
    world, trace = overwrite(open_table, other)
    assert trace.failure is None or "I1" in trace.failure  # rows of B are overwritten for good
    assert rows_now(world) == {"a1": "A", "a2": "A"}
    (refusal,) = events_of(world, "write.refused")
    assert "C5" in str(refusal["why"])


def test_hole_9_mutant_that_knows_file_ids_only_is_found() -> None:
    world, _ = overwrite(mutants.with_chain(mutants.FileIdChain), WriteOperation.INSERT_OVERWRITE)
    with pytest.raises(AssertionError, match="two rows"):
        rows_now(world)


def test_hole_9_an_insert_conflicts_with_an_earlier_overwrite() -> None:
    """The reverse case: the write set of the overwrite conflicts with the insert."""
    world = seeded("hole-9-insert", ("a1", "b1"))
    actors = [
        writer("A", [Job(operation="A", keys=("a1",), kind=WriteOperation.INSERT_OVERWRITE)]),
        writer("B", [Job(operation="B", keys=("a2",), kind=WriteOperation.INSERT)]),
    ]
    trace = play(world, actors, [Until("B", "acquire"), UntilEnd("A"), UntilEnd("B")])
    assert trace.failure is None
    (refusal,) = events_of(world, "write.refused")
    assert "C4" in str(refusal["why"])
    assert rows_now(world) == {"a1": "A", "a2": "B", "b1": "seed"}


def test_dead_overwrite_is_rolled_back_and_hides_nothing() -> None:
    world = seeded("hole-9-dead", ("a1", "b1"))
    dead = writer("A", [Job(operation="A", keys=("a2",), kind=WriteOperation.INSERT_OVERWRITE)])
    trace = play(world, [dead], [Until("A", CREATE, Fault.CRASH_BEFORE)])
    assert rows_now(world) == {"a1": "seed", "b1": "seed"}
    assert found_by(world, trace) == ""
    kinds = [slot.kind.value for slot in EngineObserver(world).structure().slots]
    assert kinds[:3] == ["commit", "commit", "abort"]
