"""Merges in Spark's tasks: by plug-ins, by partial update modes, and of single columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hoodoo
from timeline.properties.properties_file import update_properties

pytestmark = [pytest.mark.spark, pytest.mark.slow]

EXAMPLE = Path(__file__).parents[2] / "examples" / "record_merger_plugin"
COUNTED = "id long, day string, at long, count_seen long"
MERGE_ON_READ = {"hoodie__datasource__write__table__type": "MERGE_ON_READ"}
GLOBAL = {"hoodie__index__type": "GLOBAL_SIMPLE"}


@pytest.mark.parametrize("options", [MERGE_ON_READ, GLOBAL], ids=["append", "global"])
def test_an_allowed_plug_in_merges_on_the_workers(
    spark: Any,
    save: Any,
    rows: Any,
    path: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    spark.sparkContext.addPyFile(str(EXAMPLE / "hoodoo_counter_merger.py"))  # as if installed
    info = tmp_path / "site" / "hoodoo_counter_merger-1.dist-info"
    info.mkdir(parents=True)
    named = "Metadata-Version: 2.1\nName: hoodoo-counter-merger\nVersion: 1\n"
    (info / "METADATA").write_text(named)
    (info / "entry_points.txt").write_text("[hoodoo.plugins]\nc = hoodoo_counter_merger\n")
    monkeypatch.syspath_prepend(str(info.parent))
    save([(0, "mon", 0, 0)], columns=COUNTED, **options)
    import hoodoo_counter_merger

    with hoodoo.open_table(path) as table:
        merging = {
            "hoodie.record.merge.mode": "CUSTOM",
            "hoodie.record.merge.strategy.id": hoodoo_counter_merger.STRATEGY_ID,
        }
        update_properties(table.context.ports.storage, merging, now="now")
    allowed = {"hoodoo__plugins__allow": "hoodoo-counter-merger", **options}
    for batch in ([(0, "mon", 1, 1), (1, "mon", 1, 5), (0, "mon", 2, 10)], [(0, "mon", 1, 100)]):
        save(batch, columns=COUNTED, **allowed)
    assert rows(**allowed) == [(0, "mon", 1, 111), (1, "mon", 1, 5)]


def test_rows_of_one_key_fill_each_other_under_a_global_index(save: Any, rows: Any) -> None:
    ignoring = {**GLOBAL, "hoodie__table__partial__update__mode": "IGNORE_DEFAULTS"}
    save([(1, "mon", 1, None), (2, "mon", 1, 2.0)], **ignoring)
    save([(1, "mon", 2, 7.0), (1, "tue", 3, None), (2, "mon", 2, None)], **ignoring)
    assert rows() == [(1, "tue", 3, 7.0), (2, "mon", 2, 2.0)]


@pytest.mark.parametrize("options", [MERGE_ON_READ, {}], ids=["append", "rewrite"])
def test_single_columns_are_updated(save: Any, rows: Any, options: dict[str, str]) -> None:
    columns = "id long, day string, at long, amount double, note string"
    save([(1, "mon", 1, 1.0, "kept"), (2, "mon", 1, 2.0, "kept")], columns=columns, **options)
    fields = [{"name": "amount", "type": ["null", "double"]}]
    schema = json.dumps({"type": "record", "name": "t", "fields": fields})
    partial = {**options, "hoodie__write__partial__update__schema": schema}
    result = save([(1, "mon", 2, 9.0)], **partial)
    assert result.rows_updated == 1
    assert rows() == [(1, "mon", 2, 9.0, "kept"), (2, "mon", 1, 2.0, "kept")]
