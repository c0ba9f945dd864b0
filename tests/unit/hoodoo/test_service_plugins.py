"""Services and strategies of a plug-in, taken only from a distribution that is allowed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import hoodoo
from hoodoo.services import services_of
from timeline.errors import SettingError

ALLOWED = {"hoodoo.plugins.allow": "planted-services"}
MERGE_ON_READ = {
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.clean.automatic": "false",
    "hoodie.compaction.strategy": "com.acme.SmallestOnly",
}
PLUGIN = """
from hoodoo.plugins import CompactionOrder, hookimpl


class Watching:
    name = "watch"
    inline = False
    beside = False

    def run_once(self, context):
        return None


def smallest(operations, settings):
    return sorted(operations, key=lambda one: one.metrics["TOTAL_LOG_FILES_SIZE"])[:1]


@hookimpl
def compaction_strategies():
    return [CompactionOrder(name="com.acme.SmallestOnly", choose=smallest)]


@hookimpl
def table_services(properties):
    return [Watching()]
"""


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution with one plug-in, found but not imported."""
    (tmp_path / "planted_services.py").write_text(PLUGIN)
    facts = tmp_path / "planted_services-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: planted-services\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[hoodoo.plugins]\nservices = planted_services\n")
    monkeypatch.syspath_prepend(str(tmp_path))


def names(properties: dict[str, str]) -> list[str]:
    return [service.name for service in services_of(properties)]


def test_services_of_an_allowed_plugin_are_last() -> None:
    assert "watch" not in names({})
    assert names(ALLOWED)[-1] == "watch"


def test_a_strategy_of_a_plugin_chooses(tmp_path: Path) -> None:
    rows = pa.table({"id": ["a", "b"], "p": ["x", "y"], "ts": [1, 1]})
    made = hoodoo.create_table(
        tmp_path / "t",
        record_key="id",
        partition_by="p",
        ordering="ts",
        properties=MERGE_ON_READ,
    )
    made.upsert(rows)
    made.upsert(rows)
    with pytest.raises(SettingError, match="LogFileSizeBasedCompactionStrategy"):
        made.services.compact()
    made.close()
    with hoodoo.open_table(tmp_path / "t", properties={**MERGE_ON_READ, **ALLOWED}) as table:
        result = table.services.compact()
        assert result.file_groups == 1
        assert sum(len(one.log_files) for one in table.file_slices()) == 1
