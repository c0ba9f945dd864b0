"""The upgrade of a version 6 table with logs, killed at every call: a whole table all the while."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence

from filegroups.table import TableReader
from tableservices.upgrade import upgrade
from tests.interop import golden_tables
from tests.simulation.engine_kit import FILES, open_table, outside, patiently
from tests.simulator.ports import Actor, ActorPorts
from tests.simulator.scheduler import crash_points
from tests.simulator.world import SimulatedSystem
from timeline.errors import HoodooError

TABLE = "v6_mor_logs"
MADE_MS = 1_795_260_000_000  # after the golden tables were made


def old_table() -> SimulatedSystem:
    world = SimulatedSystem(scenario="upgrade")
    world.now_ms = MADE_MS
    storage = outside(world, "founder").storage
    with zipfile.ZipFile(golden_tables.FOLDER / f"{TABLE}.zip") as archive:
        for name in archive.namelist():
            if not name.endswith("/"):
                storage.create(name.removeprefix(f"{TABLE}/"), archive.read(name))
    return world


def upgrading(ports: ActorPorts) -> None:
    try:
        upgrade(patiently(ports, open_table), FILES)
    except HoodooError as error:
        ports.events.emit("sim.upgrade_failed", why=str(error))


def rows_seen(world: SimulatedSystem) -> list[dict[str, object]]:
    found = TableReader(open_table(outside(world, "looker"))).to_arrow().to_pylist()
    return sorted(found, key=lambda row: str(row["id"]))


def test_an_upgrade_killed_at_every_call_leaves_a_complete_table_and_is_repeated() -> None:
    before = rows_seen(old_table())

    def make() -> tuple[SimulatedSystem, Sequence[Actor]]:
        return old_table(), [Actor(name="U", body=upgrading)]

    versions = set()
    for case in crash_points(make, "U"):
        why = f"call {case.call} {case.fault}\n{case.trace.story()}"
        assert case.trace.failure is None, why
        assert rows_seen(case.world) == before, why
        left = open_table(outside(case.world, "again"))
        versions.add(left.config.table_version)
        case.world.now_ms += 60_000  # the dead one's lease ends
        upgrade(left, FILES)
        now = open_table(outside(case.world, "after"))
        assert now.config.table_version == 9, why
        assert now.active().pending == (), why
        assert rows_seen(case.world) == before, why
        merges = [one for one in now.active().completed_writes if one.action.value == "commit"]
        assert len(merges) == 1, why
    assert versions == {6, 9}
