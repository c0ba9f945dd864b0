"""The worked example of a merger plug-in keeps its promises, from its entry point to the rows."""

from __future__ import annotations

import importlib.util
import pickle
from pathlib import Path

import pyarrow as pa
import pytest

import hoodoo
from timeline.errors import UnknownProviderError, UnsupportedTableError
from timeline.properties.properties_file import update_properties

_EXAMPLE = Path(__file__).parents[2] / "examples" / "record_merger_plugin"
_SPEC = importlib.util.spec_from_file_location(
    "test_hoodoo_counter_merger", _EXAMPLE / "test_hoodoo_counter_merger.py"
)
_MODULE = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_MODULE)

test_counters_add_up = _MODULE.test_counters_add_up_and_nulls_count_as_nothing
test_a_delete_deletes = _MODULE.test_a_delete_deletes_and_what_comes_after_it_counts_anew

_PLUGIN = _MODULE.sys.modules["hoodoo_counter_merger"]
STRATEGY_ID = _PLUGIN.STRATEGY_ID
NAME = "hoodoo-counter-merger"
ALLOWED = {"hoodoo.plugins.allow": NAME}


def test_a_merger_is_sent_to_executors_by_name() -> None:
    merger = _PLUGIN.CounterMerger(prefix="n_")
    text = pickle.dumps(merger)
    assert pickle.loads(text) == merger
    assert b"hoodoo_counter_merger" in text


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plug-in's distribution, as an installer leaves it."""
    info = tmp_path / "site" / "hoodoo_counter_merger-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[hoodoo.plugins]\ncounter = hoodoo_counter_merger\n")
    monkeypatch.syspath_prepend(str(info.parent))


def page(name: str, views: int, title: str, *, gone: bool = False) -> dict[str, object]:
    return {"page": name, "title": title, "count_views": views, "_hoodie_is_deleted": gone}


def rows(*pages: dict[str, object]) -> pa.Table:
    return pa.Table.from_pylist(list(pages))


def counting(path: Path, table_type: str) -> Path:
    """A table of the example's strategy, as its owner made it with Java Hudi."""
    with hoodoo.create_table(
        path,
        schema=rows(page("", 0, "")).schema,
        properties={
            "hoodie.table.name": "pages",
            "hoodie.datasource.write.table.type": table_type,
            "hoodie.datasource.write.recordkey.field": "page",
        },
    ) as table:
        merging = {
            "hoodie.record.merge.mode": "CUSTOM",
            "hoodie.record.merge.strategy.id": STRATEGY_ID,
        }
        update_properties(table.context.ports.storage, merging, now="now")
    return path


def rows_of(table: hoodoo.Table) -> list[tuple[object, ...]]:
    found = table.to_arrow(columns=["page", "count_views", "title"])
    return sorted(zip(*(column.to_pylist() for column in found.columns), strict=True))


@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@pytest.mark.usefixtures("installed")
def test_a_table_of_counters_is_written_and_read(tmp_path: Path, table_type: str) -> None:
    path = counting(tmp_path / "t", table_type)
    with hoodoo.open_table(path, properties=ALLOWED) as table:
        table.upsert(rows(page("a", 1, "A"), page("b", 2, "B"), page("a", 10, "AA")))
        table.upsert(rows(page("a", 100, "AAA"), page("c", 5, "C")))
        table.upsert(rows(page("a", 1000, "AAAA"), page("b", 0, "", gone=True)))
        assert rows_of(table) == [("a", 1111, "AAAA"), ("c", 5, "C")]
        assert table.to_arrow(columns=["count_views"])["count_views"].to_pylist() == [1111, 5]
        assert table.to_arrow(columns=["page"], filter=[("count_views", ">", 1000)]).num_rows == 1
        table.delete(rows(page("c", 0, "")))
        assert rows_of(table) == [("a", 1111, "AAAA")]
        if table_type == "MERGE_ON_READ":
            assert table.services.compact() is not None
            assert not [one for one in table.file_slices() if one.log_files]
            assert rows_of(table) == [("a", 1111, "AAAA")]


@pytest.mark.usefixtures("installed")
def test_no_merger_is_loaded_without_permission(tmp_path: Path) -> None:
    path = counting(tmp_path / "t", "MERGE_ON_READ")
    with hoodoo.open_table(path, properties=ALLOWED) as table:
        table.upsert(rows(page("a", 1, "A")))
        table.upsert(rows(page("a", 1, "A")))
        # SEC4: a table must not choose whose code runs.
        update_properties(table.context.ports.storage, ALLOWED, now="now")
    with hoodoo.open_table(path) as table:
        for call in (table.to_arrow, lambda: table.upsert(rows(page("a", 1, "A")))):
            with pytest.raises(UnsupportedTableError, match=STRATEGY_ID) as refused:
                call()
            assert refused.value.kind == "custom_merger"
            assert "hoodoo.plugins.allow" in refused.value.message
        assert table.to_arrow(query_type="read_optimized").num_rows == 1
    with pytest.raises(UnknownProviderError, match="not-installed"):
        hoodoo.open_table(path, properties={"hoodoo.plugins.allow": "not-installed"})
