"""The audit reports no violation for files that an abandoned instant's own process deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

import hoodoo
from tests.integration.running.audit import Audit
from tests.simulator.world import SimulatedSystem
from timeline.model.file_names import SLOTS

RETAINED = 15


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = hoodoo.inputs.to_arrow_table([{"id": "a", "v": 0}])
    path = tmp_path / "t"
    properties = {"hoodie.write.concurrency.mode": "optimistic_concurrency_control"}
    with hoodoo.create_table(
        str(path), schema=rows.schema, record_key="id", properties=properties
    ) as made:
        made.upsert(rows)
    return path


def data_file(table: Path) -> str:
    [found] = table.glob("*.parquet")
    return found.name


def test_a_name_that_was_dropped_and_used_again_for_a_slot_is_no_stray_delete(table: Path) -> None:
    """Both drew one time: the first abandoned it, and its bucket's files have the same names."""
    ports, name = SimulatedSystem(), data_file(table)
    ports.put("somebody", name, b"former", durable=True, new=True)
    ports.remove("somebody", name)
    audit = Audit(table, ports)
    audit.sample()  # the slot and its file are seen at once
    assert audit.violations(RETAINED) == []


def test_a_file_that_was_deleted_after_its_slot_is_a_stray_delete(table: Path) -> None:
    audit, name = Audit(table), data_file(table)
    audit.sample()
    audit.ports.remove("somebody", name)
    audit.sample()  # and there again
    assert "I9" in "\n".join(map(str, audit.violations(RETAINED)))


@pytest.mark.parametrize("glanced", [True, False])
def test_a_slot_that_was_truncated_between_two_listings_is_known_by_a_cached_head(
    table: Path, glanced: bool
) -> None:
    audit = Audit(table)
    audit.sample()
    with hoodoo.open_table(str(table)) as opened:
        opened.upsert(hoodoo.inputs.to_arrow_table([{"id": "a", "v": 1}]))
        if glanced:
            audit.copy_slots()
        [*_, newest] = sorted((table / SLOTS).iterdir())
        newest.unlink()
    audit.sample()
    assert ("without a slot" in "\n".join(map(str, audit.violations(RETAINED)))) is not glanced
