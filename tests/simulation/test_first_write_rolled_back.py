"""GC-7: the first write of a table is rolled back, and its owner wakes and writes on."""

from __future__ import annotations

import pytest

from filegroups.table import TableReader
from tests.simulation.engine_kit import (
    TOLERATED_MS,
    Job,
    new_world,
    open_table,
    ports_of,
    seeded,
    undoer,
    writer,
)
from tests.simulator.faults import Fault, Faults
from tests.simulator.ports import Actor, ActorPorts
from tests.simulator.scheduler import run
from tests.simulator.script import Pause, Script, Until, UntilEnd
from timeline.model.commit_metadata import TableType


@pytest.mark.spec("GC-7")
@pytest.mark.parametrize("dies", [True, False])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("table_type", list(TableType))
def test_rows_of_a_rolled_back_first_write_are_invisible(
    first: bool, table_type: TableType, dies: bool
) -> None:
    """Nothing was archived, and a time below the timeline alone makes nothing committed."""
    start = () if first else ("z0",)
    make = seeded if start else lambda name, _, **how: new_world(name, **how)
    world = make("undone", start, table_type=table_type)
    seen: list[dict[str, str]] = []

    def reads(ports: ActorPorts) -> None:
        table = TableReader(open_table(ports_of(ports)))
        rows = table.to_arrow(columns=["id", "operation"]).to_pylist()
        seen.append({row["id"]: row["operation"] for row in rows if row["id"] not in start})

    script = Script(
        [
            Until("A", "open_output a/"),
            Pause(2 + TOLERATED_MS // 1_000),
            UntilEnd("R"),
            UntilEnd("B"),
            Until("A", "sync_folders", *([Fault.CRASH_BEFORE] if dies else [])),
            UntilEnd("C"),
            UntilEnd("S"),
        ]
    )
    actors = [
        writer("A", [Job(operation="A", keys=("a1", "a2"))]),
        undoer(),
        writer("B", [Job(operation="B", keys=("b1",))]),
        writer("C", [Job(operation="C", keys=("a1",))]),
        Actor(name="S", body=reads),
    ]
    trace = run(world, actors, faults=Faults(time_jump_ms=1_000), policy=script)
    assert trace.failure is None, trace.story()
    assert script.played, trace.story()
    assert seen == [{"a1": "C", "b1": "B"}]
