"""
Java Hudi and hoodoo on merge-on-read tables: each reads, compacts and appends to the other's files.

One table goes through all steps, for every table version with every release of Java that writes
it, both orders of merging and both placements. Every answer of Java, of the hudi wheel and of
ours is compared row by row, meta columns included. Two of the tables run in `make interop`,
all of them in `make nightly`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from hoodoo.configuration import Layers
from hoodoo.verify.verify import verify_at
from tests.interop.java import JavaOracle
from tests.interop.mor import (
    BUCKET,
    COMMIT_TIME,
    COMMON,
    EVENT_TIME,
    FORMAT,
    JAVA,
    SCHEMA,
    SIMPLE,
    START,
    arrow,
    by_hudi_rs,
    row,
)
from tests.interop.values import comparable, encoded, same, without_meta

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(900)]

Options = dict[str, str]

RELEASES = (("1.2.0", 9), ("1.2.0", 8), ("1.1.1", 9), ("1.1.1", 8), ("1.0.2", 8))
ORDERS = {"event": EVENT_TIME, "commit": COMMIT_TIME}
INDEXES = {"simple": SIMPLE, "bucket": BUCKET}
SHORT = {("1.2.0", 9, "event", "simple"), ("1.0.2", 8, "event", "bucket")}
MATRIX = [
    pytest.param(
        release,
        version,
        order,
        index,
        id=f"{release}-v{version}-{order}-{index}",
        marks=() if (release, version, order, index) in SHORT else pytest.mark.slow,
    )
    for (release, version), order, index in product(RELEASES, ORDERS, INDEXES)
]


class Witnesses:
    """All readers of the table; the hudi wheel only if it supports the table."""

    def __init__(
        self, java: JavaOracle, path: Path, options: Options, *, wheel: bool = True
    ) -> None:
        self.java, self.path, self.options, self.wheel = java, path, options, wheel

    def see(self, expected: Mapping[str, str]) -> None:
        """All readers return exactly these keys and values, and the same meta columns."""
        with hoodoo.open_table(self.path, properties=self.options) as table:
            mine = encoded(table.current_state().to_arrow(with_hoodie_columns=True))
        assert {each["id"]: each["val"] for each in mine} == dict(expected)
        assert len(mine) == len(expected)
        assert same(comparable(self.java.read(self.path)), mine)
        assert not self.wheel or same(by_hudi_rs(self.path), mine)

    def see_changes(self, since: str) -> None:
        """The changes in a range of completion times; 1.0 includes its start (fmt 6.6)."""
        with hoodoo.open_table(self.path, properties=self.options) as table:
            mine = without_meta(encoded(table.changes(since).read_all()))
        start = str(int(since) + 1) if self.java.version.startswith("1.0") else since
        assert same(without_meta(self.java.read(self.path, incremental=[start])), mine)


@pytest.mark.parametrize(("release", "version", "order", "index"), MATRIX)
def test_both_engines_read_compact_and_append(
    java_oracle: Callable[..., JavaOracle],
    tmp_path: Path,
    release: str,
    version: int,
    order: str,
    index: str,
) -> None:
    java, path = java_oracle(release), tmp_path / "t"
    options = {
        **COMMON,
        **ORDERS[order],
        **INDEXES[index],
        "hoodie.write.table.version": str(version),
    }
    theirs = {**options, **JAVA}
    everybody, by_event = Witnesses(java, path, options), order == "event"

    def compact() -> None:
        java.service(path, "compact", conf={**theirs, "hoodie.auto.commit": "true"})  # for 1.0.2
        with hoodoo.open_table(path, properties=options) as table:
            assert not any(each.log_files for each in table.file_slices())

    # Ours alone, in Parquet blocks and in Avro blocks.
    hoodoo.create_table(path, schema=SCHEMA, properties=options).close()
    with hoodoo.open_table(path, properties={**options, FORMAT: "parquet"}) as table:
        first = table.upsert(arrow(START))
        # updates, late and of the same time; rows that say they are deleted, one of them late
        table.upsert(
            arrow(
                [
                    row("a", 20, "newer"),
                    row("b", 5, "late"),
                    row("c", 10, "tie"),
                    row("d", 20, "gone", gone=True),
                    row("e", 5, "late gone", gone=True),
                ]
            )
        )
    with hoodoo.open_table(path, properties={**options, FORMAT: "avro"}) as table:
        # deletes by key; a later row revives one only if it is not older
        assert table.delete(arrow([row("f", 0, ""), row("g", 0, "")])).rows_deleted == 2
        table.upsert(arrow([row("f", 10, "back"), row("g", 9, "late back")]))
        assert all(each.log_files for each in table.file_slices())
    now: dict[str, str] = {"a": "newer", "c": "tie", "f": "back", "h": "first"}
    now |= {"b": "first", "e": "first"} if by_event else {"b": "late", "g": "late back"}
    everybody.see(now)
    everybody.see_changes(first.completion_time)
    base = without_meta(java.read(path, query_type="read_optimized"))
    assert [each["val"] for each in base] == ["first"] * 8

    # Java compacts, then we write.
    compact()
    everybody.see(now)
    with hoodoo.open_table(path, properties=options) as table:
        table.upsert(arrow([row("a", 30, "on top"), row("h", 30, "on top")]))
        table.delete(arrow([row("c", 0, "")]))
        assert any(each.log_files for each in table.file_slices())
    now |= {"a": "on top", "h": "on top"}
    del now["c"]
    everybody.see(now)

    # Java appends and deletes, we append to that.
    java.write(path, [row("a", 40, "java"), row("b", 40, "java"), row("n", 1, "new")], conf=theirs)
    now |= {"a": "java", "b": "java", "n": "new"}
    everybody.see(now)
    java.write(path, [row("h", 0, "")], "delete", conf=theirs)
    del now["h"]
    everybody.see(now)
    with hoodoo.open_table(path, properties=options) as table:
        table.upsert(arrow([row("a", 50, "ours"), row("n", 50, "ours"), row("b", 39, "late")]))
    now |= {"a": "ours", "n": "ours"} if by_event else {"a": "ours", "n": "ours", "b": "late"}
    everybody.see(now)

    compact()
    everybody.see(now)
    with hoodoo.open_table(path, properties=options) as table:
        table.upsert(arrow([row("a", 80, "last"), row("c", 80, "again")]))
    now |= {"a": "last", "c": "again"}
    everybody.see(now)
    assert verify_at(path, Layers()).problems == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("release", "version", "order", "index"),
    # 1.0.2 cannot read its own: "Partial merging logic is not implemented".
    [each for each in MATRIX if "1.0.2-v8-commit" not in str(each.id)],
)
def test_java_writes_single_columns_between_our_rows(
    java_oracle: Callable[..., JavaOracle],
    tmp_path: Path,
    release: str,
    version: int,
    order: str,
    index: str,
) -> None:
    """
    Its statements leave the other columns out of their log blocks.

    The table has no `_hoodie_is_deleted`. If a table has one, Java expects it in such a block at its
    position in whole rows, and stops.
    """
    java, path = java_oracle(release), tmp_path / "t"
    options = {
        **COMMON,
        **ORDERS[order],
        **INDEXES[index],
        "hoodie.write.table.version": str(version),
    }
    everybody, by_event = Witnesses(java, path, options), order == "event"

    def rows(*each: dict[str, Any]) -> pa.Table:
        return arrow(list(each)).drop_columns(["_hoodie_is_deleted"])

    with hoodoo.create_table(path, schema=rows().schema, properties=options) as table:
        table.upsert(rows(*START))
        table.upsert(rows(row("a", 50, "ours"), row("b", 40, "ours"), row("n", 50, "ours")))
        table.delete(rows(row("c", 0, "")))
    now: dict[str, str] = dict.fromkeys("defgh", "first") | dict.fromkeys("abn", "ours")
    merge_times(java, path, {**options, **JAVA}, {"a": 60, "b": 38, "n": 50, "f": 70})
    everybody.see(now)  # only their times are new
    with hoodoo.open_table(path, properties=options) as table:
        table.upsert(rows(row("a", 55, "below"), row("n", 61, "above"), row("f", 70, "tie")))
        table.delete(rows(row("b", 0, "")))
    now |= {"n": "above", "f": "tie"} if by_event else {"a": "below", "n": "above", "f": "tie"}
    del now["b"]
    everybody.see(now)
    java.service(path, "compact", conf={**options, **JAVA, "hoodie.auto.commit": "true"})
    everybody.see(now)
    with hoodoo.open_table(path, properties=options) as table:
        assert not any(each.log_files for each in table.file_slices())
        table.upsert(rows(row("a", 80, "last"), row("b", 80, "again")))
    everybody.see(now | {"a": "last", "b": "again"})


def merge_times(java: JavaOracle, path: Path, theirs: Options, times: Mapping[str, int]) -> None:
    """Let Java set the time of some rows, and check that this changes nothing else of them."""
    asked = {key: value for key, value in theirs.items() if ".datasource." not in key}
    asked["hoodie.compact.inline"] = "false"
    source = " union all ".join(
        f"select '{key}' id, '{row(key, 0, None)['p']}' p, {ts}L ts" for key, ts in times.items()
    )
    merge = f"merge into {{t}} t using ({source}) s on t.id = s.id and t.p = s.p"
    before = set(path.rglob(".*.log.*"))
    java.sql(
        path,
        ";;".join(
            [
                *(f"set {key}={value}" for key, value in asked.items()),
                f"{merge} when matched then update set ts = s.ts",
                *(f"reset {key}" for key in asked),
            ]
        ),
    )
    written = set(path.rglob(".*.log.*")) - before
    assert written
    assert all(b'"val"' not in log.read_bytes() for log in written)


PARTIAL = [
    pytest.param("IGNORE_DEFAULTS", None, id="nulls"),
    pytest.param("FILL_UNAVAILABLE", "unavailable", id="marked"),
]


@pytest.mark.slow
@pytest.mark.parametrize("release", ["1.2.0", "1.1.1"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("mode", "lacking"), PARTIAL)
def test_both_engines_keep_columns_that_an_update_does_not_contain(
    java_oracle: Callable[..., JavaOracle],
    tmp_path: Path,
    release: str,
    order: str,
    mode: str,
    lacking: str | None,
) -> None:
    """By the mode of the table, which version 9 has."""
    java, path = java_oracle(release), tmp_path / "t"
    options = {**COMMON, **ORDERS[order], **SIMPLE, "hoodie.table.partial.update.mode": mode}
    if lacking is not None:
        options["hoodie.write.partial.update.unavailable.value"] = lacking
    # The wheel shows the marker as if it were a value.
    everybody = Witnesses(java, path, options, wheel=mode != "FILL_UNAVAILABLE")
    by_event = order == "event"
    with hoodoo.create_table(path, schema=SCHEMA, properties=options) as table:
        table.upsert(arrow(START))
        table.upsert(arrow([row("a", 20, lacking), row("b", 5, lacking), row("c", 20, "newer")]))
        table.upsert(arrow([row("c", 30, lacking), row("e", 10, lacking), row("f", 5, "late")]))
        table.delete(arrow([row("g", 0, "")]))
    now: dict[str, str] = dict.fromkeys("abdefh", "first") | {"c": "newer"}
    if not by_event:
        now["f"] = "late"
    everybody.see(now)
    java.write(path, [row("a", 40, lacking), row("h", 40, "java")], conf={**options, **JAVA})
    now |= {"h": "java"}
    everybody.see(now)
    java.service(path, "compact", conf={**options, **JAVA})
    everybody.see(now)
    with hoodoo.open_table(path, properties=options) as table:
        table.upsert(arrow([row("h", 50, lacking), row("a", 50, "ours")]))
    everybody.see(now | {"a": "ours"})
