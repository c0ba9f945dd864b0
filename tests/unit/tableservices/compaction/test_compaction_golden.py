"""Merge-on-read tables of Java Hudi compacted by us: its pending plans, its logs, its rows."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

import hoodoo
from hoodoo.verify.verify import verify
from tests.interop import golden_tables
from tests.interop.values import encoded, same
from timeline.errors import UnsupportedTableError

#: A plan of Java's is pending; a log of Java's is on top of it.
PENDING = ("v8_mor_compaction_pending", "v9_mor_compaction_pending")
LOGGED = (
    "v8_deletes_ordering",
    "v8_event_time_late",
    "v8_log_compaction",
    "v8_mor_logs",
    "v8_partial_update",
    "v9_cdc_mor",
    "v9_commit_time_order",
    "v9_multi_ordering",
    "v9_nbcc_compaction",
    "v9_nbcc_overlap",
    "v9_schema_evolution",
)
UNMINDED = {"_hoodie_file_name", "_hoodie_commit_seqno"}


def rows_of(table: hoodoo.Table) -> list[dict[str, object]]:
    rows = encoded(table.current_state().to_arrow(with_hoodie_columns=True))
    return [{key: row[key] for key in row.keys() - UNMINDED} for row in rows]


@pytest.mark.parametrize("name", [*PENDING, *LOGGED])
def test_rows_of_java_are_the_same_after_a_compaction_of_ours(name: str, tmp_path: Path) -> None:
    path = golden_tables.unpack(name, tmp_path)
    with hoodoo.open_table(path) as table:
        before = rows_of(table)
        logs = sum(len(one.log_files) for one in table.file_slices())
        result = table.services.compact()
        assert (result is None) == (logs == 0)
        assert same(rows_of(table), before)
        if name in PENDING:
            assert sum(len(one.log_files) for one in table.file_slices()) == 0
        found = verify(table.context)
        assert found.ok, found.problems


@pytest.mark.parametrize("name", LOGGED)
def test_rows_of_java_are_the_same_after_a_log_compaction_of_ours(
    name: str, tmp_path: Path
) -> None:
    path = golden_tables.unpack(name, tmp_path)
    two = {"hoodie.log.compaction.blocks.threshold": "2"}
    with hoodoo.open_table(path, properties=two) as table:
        before = rows_of(table)
        with suppress(UnsupportedTableError):  # partial updates stay as they are
            table.services.log_compact()
        assert same(rows_of(table), before)
        table.services.compact()
        assert same(rows_of(table), before)
