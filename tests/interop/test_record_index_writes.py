"""Java Hudi and hoodoo upsert one table by turns, both by its record index (MDT-20)."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hoodoo
from tests.interop import golden_tables
from tests.interop.java import JavaOracle
from tests.interop.test_metadata_maintained import OFF, ON, for_java, row
from tests.interop.values import comparable, encoded

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(900)]


def check(java: JavaOracle, path: Path) -> None:
    """Java sees our rows, with and without the metadata table; it takes ``part`` from folders."""
    with hoodoo.open_table(path) as table:
        mine = encoded(table.current_state().to_arrow(with_hoodie_columns=True).drop(["part"]))
    for conf in (OFF, ON):
        theirs = java.read(path, conf=conf)
        rows = [{name: one[name] for name in one if name != "part"} for one in theirs]
        assert comparable(rows) == mine


@pytest.mark.spec("MDT-20")
@pytest.mark.parametrize(
    ("name", "index"),
    [("v9_mor_ri", "RECORD_INDEX"), ("v9_cow_partitioned_ri", "RECORD_LEVEL_INDEX")],
)
def test_upserts_by_turns_through_the_record_index_make_no_key_twice(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, name: str, index: str
) -> None:
    chance = random.Random(name)
    account = golden_tables.account(name)
    java, path = java_oracle(account["hudi"]), golden_tables.unpack(name, tmp_path)
    conf = {**account["conf"], **ON, "hoodie.index.type": index}
    conf["hoodie.write.auto.upgrade"] = "false"
    by_index = {"hoodie.index.type": index}
    stored_first = [one["id"] for one in account["snapshot"]]
    # One of the tables has a key in two partitions.
    places = {
        one["id"]: one["part"] for one in account["snapshot"] if stored_first.count(one["id"]) == 1
    }
    values = {}
    for number in range(1, 5):
        # Known keys, sometimes in another partition: a global index updates those where they are.
        keys = [*chance.sample(sorted(places), 3), f"n{number}"]
        rows: list[dict[str, Any]] = []
        for key in keys:
            moves = index == "RECORD_INDEX" and chance.random() < 0.3
            part = "p9" if moves else places.get(key, "p1")
            rows.append(row(key, part, 100 * number))
            places.setdefault(key, part)
            values[key] = 100 * number
        if number % 2:
            with hoodoo.open_table(path, properties=by_index) as table:
                table.upsert(rows)
        else:
            java.write(path, [for_java(one) for one in rows], conf=conf)
        check(java, path)
        with hoodoo.open_table(path, properties=by_index) as table:
            stored = table.to_arrow(with_hoodie_columns=True).to_pylist()
            found = table.get_rows([f"n{number}", keys[0]]).column("a").to_pylist()
        new = [f"n{one}" for one in range(1, number + 1)]
        assert sorted(one["id"] for one in stored) == sorted([*stored_first, *new])
        assert {one["id"]: one["a"] for one in stored if one["id"] in values} == values
        assert found == [100 * number] * 2
        for one in stored:
            if one["id"] in places:
                assert one["_hoodie_partition_path"] == places[one["id"]]
