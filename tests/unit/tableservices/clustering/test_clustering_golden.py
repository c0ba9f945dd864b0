"""Tables of Java Hudi clustered by us: its pending plan, its files and logs, its rows."""

from __future__ import annotations

from pathlib import Path

import pytest

import hoodoo
from hoodoo.verify.verify import verify
from tests.interop import golden_tables
from tests.interop.values import encoded
from timeline.errors import UnsupportedTableError
from timeline.model.instant import Action

NAMES = (
    "v8_complex_key",
    "v8_deletes_ordering",
    "v8_event_time_late",
    "v8_keyless",
    "v8_log_compaction",
    "v8_mor_logs",
    "v8_partial_update",
    "v9_all_types",
    "v9_cdc_mor",
    "v9_custom_key",
    "v9_mor_compaction_pending",
    "v9_multi_ordering",
    "v9_no_meta_fields",
    "v9_overwrite",
    "v9_schema_evolution",
)
REFUSED = ("v9_consistent_bucket", "v9_nbcc_overlap", "v9_simple_bucket")
MANUAL = {"hoodie.clean.automatic": "false"}


def rows_of(table: hoodoo.Table) -> list[str]:
    """
    Rows with commit times but without file names; a value that is not stored may be null or empty.
    """
    rows = encoded(table.current_state().to_arrow(with_hoodie_columns=True))
    names = sorted(rows[0].keys() - {"_hoodie_file_name"})
    return sorted(str([row[name] or None for name in names]) for row in rows)


def test_javas_pending_plan_is_carried_out(tmp_path: Path) -> None:
    path = golden_tables.unpack("v9_cow_clustering_pending", tmp_path)
    with hoodoo.open_table(path, properties=MANUAL) as table:
        before = rows_of(table)
        [planned] = table.context.active().pending
        assert table.services.execute(planned.requested_time) is not None
        assert rows_of(table) == before
        assert table.context.active().pending == ()
        assert verify(table.context).problems == ()


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_java_are_the_same_after_a_clustering_of_ours(name: str, tmp_path: Path) -> None:
    path = golden_tables.unpack(name, tmp_path)
    with hoodoo.open_table(path, properties=MANUAL) as table:
        before = rows_of(table)
        table.services.cluster()
        assert rows_of(table) == before
        assert verify(table.context).problems == ()


@pytest.mark.parametrize("name", REFUSED)
def test_javas_buckets_are_refused_by_name(name: str, tmp_path: Path) -> None:
    path = golden_tables.unpack(name, tmp_path)
    with hoodoo.open_table(path, properties=MANUAL) as table:
        with pytest.raises(UnsupportedTableError, match="bucket index"):
            table.services.cluster()
        pending = table.context.active().pending
        assert not any(one.action is Action.CLUSTERING for one in pending)


def test_a_clustering_is_part_of_the_metadata_table(tmp_path: Path) -> None:
    path = golden_tables.unpack("v9_cow_mdt_record_index", tmp_path)
    with hoodoo.open_table(path, properties=MANUAL) as table:
        before = table.to_arrow().sort_by("id")
        done = table.services.cluster(sort_by=["val"])
        assert done is not None
        assert table.to_arrow().sort_by("id") == before
    time = done.requested_time
    metadata = path / ".hoodie/metadata"
    assert len(list(metadata.glob(f".hoodie/timeline/{time}_*.deltacommit"))) == 1
    assert list(metadata.glob(f"files/.files-0000-0_{time}.log.1_0-0-*"))
    assert list(metadata.glob(f"record_index/.record-index-*_{time}.log.1_0-0-*"))
