"""RST-1: a process that refreshes during the deletes of a restore restores no file."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from filegroups.writing.write import write
from tableservices.cleaning.execute import clean
from tableservices.restoring.restore import restore
from tableservices.restoring.rollback import rollback_write
from tests.simulation.engine_kit import (
    CLEANING,
    TOLERATED_MS,
    Job,
    do_write,
    open_table,
    outside,
    plan_for,
    ports_of,
    rows_now,
    seeded,
)
from tests.simulation.test_compaction import serving
from tests.simulator.faults import Faults
from tests.simulator.ports import make_ports
from tests.simulator.scheduler import run
from tests.simulator.script import Script, Until, UntilEnd
from timeline.context import TableContext
from timeline.model.commit_metadata import TableType, WriteOperation


def restores(context: TableContext) -> None:
    restore(context, context.active().completed_writes[0].requested_time)


def rolls_back(context: TableContext) -> None:
    rollback_write(context, context.active().completed_writes[-1].requested_time)


@pytest.mark.spec("RST-1")
@pytest.mark.parametrize("what", [restores, rolls_back])
@pytest.mark.parametrize("table_type", list(TableType))
def test_a_concurrent_clean_restores_no_restored_away_file(
    what: Callable[[TableContext], None], table_type: TableType
) -> None:
    """An instant with pending files and without a completed file is not a dead committed write."""
    world = seeded("beside", ("a1", "b1"), table_type=table_type)
    context = open_table(outside(world, "old"))
    plan = plan_for("gone", WriteOperation.DELETE_PARTITION, delete_partitions=("a",))
    write(context, plan, None)
    world.now_ms += 10 * TOLERATED_MS
    script = Script(
        [
            Until("R", "list .hoodie/.temp"),
            Until("R", "delete .hoodie/timeline/"),  # the completed file goes
            Until("R", "list .hoodie/.temp"),
            Until("K", "acquire"),  # it treats an instant without a completed file as a dead write
            UntilEnd("R"),
            UntilEnd("K"),
        ]
    )
    actors = [serving("R", what), serving("K", lambda context: clean(context, CLEANING))]
    trace = run(world, actors, faults=Faults(time_jump_ms=1_000), policy=script)
    assert trace.failure is None, trace.story()
    assert script.played, trace.story()
    found = [rows_now(world)]
    ports = make_ports(world, world.new_actor("later", seed=0))
    for _ in range(4):  # a clean deletes hidden files for good
        later = open_table(ports_of(ports))
        do_write(ports, later, Job(operation="later", keys=("b1",)))
        clean(later, CLEANING)
    found.append(rows_now(world))
    assert found == [{"a1": "seed", "b1": "seed"}, {"a1": "seed", "b1": "later"}]
