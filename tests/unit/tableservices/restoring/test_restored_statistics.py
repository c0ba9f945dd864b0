"""Bounds of partitions after a restore: they cover the rows that are visible again."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pytest

import hoodoo

COLUMNS = {
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.index.column.stats.enable": "true",
}


@pytest.mark.spec("MDT-12")
@pytest.mark.parametrize("removes", ["restore", "rollback"])
@pytest.mark.parametrize("merges", ["rebuild", "compact"])
def test_bounds_cover_rows_that_are_visible_again(
    tmp_path: Path, removes: str, merges: str
) -> None:
    """A build after an overwrite has bounds of its rows only; the older rows are outside of them."""
    with hoodoo.create_table(
        tmp_path / "t", record_key="id", partition_by="p", properties=COLUMNS
    ) as table:
        table.upsert([{"id": "a", "p": "x", "v": -700}, {"id": "b", "p": "y", "v": 1}])
        kept = table.savepoint()
        done = table.insert_overwrite([{"id": "c", "p": "x", "v": 5}])
        if merges == "rebuild":
            assert table.metadata.rebuild() is not None
        else:
            table.services.maintain_metadata_table()
        if removes == "restore":
            table.restore(kept.requested_time)
        else:
            table.rollback(done.requested_time)
        assert table.to_arrow(filter="v < -500").column("id").to_pylist() == ["a"]
        assert lowest(table, "x") <= -700
        assert table.metadata.verify() == ()


def lowest(table: hoodoo.Table, partition: str) -> int:
    """Return the smallest value of ``v`` that the metadata table has for a partition."""
    from filegroups.metadata_table.reading import open_metadata_table

    context = table.context
    ports = context.ports
    metadata = open_metadata_table(ports.storage, context.config, context.snapshot(), ports=ports)
    assert metadata is not None
    (rows,) = metadata.read("partition_stats")
    mine = rows.filter(
        pc.and_(
            pc.equal(rows.column("file_name"), partition), pc.equal(rows.column("column_name"), "v")
        )
    )
    (found,) = mine.column("min").to_pylist()
    return int(found["LongWrapper"])
