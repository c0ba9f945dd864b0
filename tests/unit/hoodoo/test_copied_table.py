"""A table copied while its writers live is recognised as a copy, and can be adopted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import hoodoo
from timeline.errors import WriterDisagreementError
from timeline.truncation import raise_low_water_mark
from timeline.writer_registry import reset_copied_table

MANY = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.write.lock.provider": "filesystem",
}


def rows(*keys: str) -> pa.Table:
    return pa.table({"id": list(keys), "v": [1] * len(keys)})


@pytest.mark.parametrize("options", [MANY, {}], ids=["many", "one"])
def test_a_copy_of_a_table_with_live_writers_names_the_way_to_adopt_it(
    tmp_path: Path, options: dict[str, str]
) -> None:
    original = hoodoo.create_table(
        tmp_path / "a", schema=rows("a").schema, record_key="id", properties=options
    )
    with original:
        original.upsert(rows("a"))
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        with hoodoo.open_table(tmp_path / "b", properties=options) as copy:
            assert copy.to_arrow().num_rows == 1
            with pytest.raises(WriterDisagreementError, match="hoodoo table adopt") as refused:
                copy.upsert(rows("b"))
            assert refused.value.kind == "copied_table"
            assert refused.value.fields["address"].endswith("/a")
            assert len(reset_copied_table(copy.context)) == 1
            copy.upsert(rows("b"))
            original.upsert(rows("c", "d"))
            assert reset_copied_table(copy.context) == []
            assert (copy.to_arrow().num_rows, original.to_arrow().num_rows) == (2, 3)


def test_a_second_path_to_the_same_table_is_no_copy(tmp_path: Path) -> None:
    with hoodoo.create_table(
        tmp_path / "a" / "t", schema=rows("a").schema, record_key="id"
    ) as original:
        original.upsert(rows("a"))
        context = original.context
        entry = context.low_water_mark.entry
        assert entry is not None
        entry["address"] = "file:/another/way/t"
        raise_low_water_mark(original.context)
        with hoodoo.open_table(tmp_path / "a" / "t") as same:
            same.upsert(rows("b"))
            assert reset_copied_table(same.context) == []
