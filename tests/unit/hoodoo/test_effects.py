"""
Each key is done, refused, warned about once a handle, or without effect by design: none is silent.
"""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import pyarrow as pa
import pytest

import hoodoo
from filegroups.settings.known_keys import (
    WARNED,
    WITHOUT_EFFECT,
    Effect,
    effect_of,
    hudi_keys,
    key_warnings,
    keys_without_effect,
)
from hoodoo.configuration import (
    Layers,
    declared_keys,
    describe,
)
from hoodoo.services import service_options
from timeline.errors import SettingError
from timeline.properties.options import as_property_set

SCHEMA = pa.schema([("id", pa.string()), ("v", pa.int64())])
KEYS = sorted({known.key for known in hudi_keys().values()})
#: A user expects something of each of them.
EXPECTED = [
    "hoodie.datasource.merge.type",
    "hoodie.datasource.streaming.startOffset",
    "hoodie.datasource.read.paths",
    "hoodie.datasource.read.incr.path.glob",
    "hoodie.datasource.read.incr.fallback.fulltablescan.enable",
    "hoodie.datasource.write.streaming.checkpoint.identifier",
    "hoodie.datasource.write.streaming.ignore.failed.batch",
    "hoodie.datasource.write.streaming.retry.count",
    "hoodie.table.services.enabled",
    "hoodie.compaction.partition.path.regex",
    "hoodie.clean.partition.filter.regex",
    "hoodie.clean.partition.filter.selected",
    "hoodie.static.overwrite.partition.paths",
    "hoodie.metadata.index.column.stats.enable",
    "hoodie.metadata.global.record.level.index.enable",
    "hoodie.table.service.manager.enabled",
    "hoodie.write.ignore.failed",
    "hoodie.write.schema",
    "hoodie.sql.insert.mode",
    "hoodie.spark.sql.insert.into.operation",
    "hoodie.meta.sync.client.tool.class",
    "hoodie.datasource.hive_sync.mode",
    "hoodie.metrics.on",
    "hoodie.errortable.base.path",
    "hoodie.metadata.enable",
]


DECLARED = declared_keys(service_options())


def test_every_key_of_hudis_has_an_effect_or_a_reason() -> None:
    for key in KEYS:
        known = hudi_keys()[key.casefold()]
        found = effect_of(key, DECLARED)
        assert found.effect is not Effect.UNKNOWN, key
        assert (found.effect is Effect.DONE) == (found.why == ""), key
        for alias in (*known.aliases, key.upper()):
            assert effect_of(alias, DECLARED) == found, f"{alias}, another name for {key}"
        if found.effect is Effect.DONE:
            assert {alias.casefold() for alias in known.aliases} <= DECLARED, key


@pytest.mark.parametrize("key", EXPECTED)
def test_no_key_that_a_user_relies_on_is_silent(key: str) -> None:
    assert effect_of(key, DECLARED).effect not in (Effect.NONE, Effect.UNKNOWN)


def test_no_key_of_the_metadata_table_has_only_the_effect_of_its_family() -> None:
    of_metadata = [key for key in KEYS if "hoodie.metadata." in key]
    assert len(of_metadata) > 70
    for key in of_metadata:
        assert "does not know this key" not in effect_of(key, DECLARED).why, key


def test_no_key_is_in_both_tables() -> None:
    assert not WARNED.keys() & WITHOUT_EFFECT.keys()
    assert all(
        why and not why.endswith(".") for why in (*WARNED.values(), *WITHOUT_EFFECT.values())
    )


def warnings_of(**options: str) -> tuple[str, ...]:
    properties = as_property_set({key.replace("__", "."): text for key, text in options.items()})
    return key_warnings(properties, DECLARED)


def test_keys_of_one_reason_are_reported_together() -> None:
    options = {
        "hoodie.metrics.on": "true",
        "hoodie.metrics.reporter.type": "CONSOLE",
        "hoodie.metrics.lock.enable": "false",
    }
    (text,) = warnings_of(**options)
    assert text.startswith("no effect here, hoodoo sends no metrics")
    assert text.endswith("hoodie.metrics.on (from code), hoodie.metrics.reporter.type (from code)")


@pytest.mark.parametrize(
    ("key", "value", "is_warned"),
    [
        ("hoodie.metadata.enable", "true", False),
        ("hoodie.metadata.enable", "false", False),
        ("hoodie.metadata.index.expression.enable", "true", True),
        ("hoodie.metadata.max.reader.memory", "1", False),
        ("hoodie.write.auto.upgrade", "true", True),
        ("hoodie.write.auto.upgrade", "false", False),
        ("hoodie.write.concurrency.schema.conflict.resolution.enable", "false", True),
        ("hoodie.write.concurrency.schema.conflict.resolution.enable", "true", False),
        ("hoodie.allow.empty.commit", "false", True),
        ("hoodie.allow.empty.commit", "true", False),
        ("hoodie.merge.allow.duplicate.on.inserts", "false", True),
        ("hoodie.merge.allow.duplicate.on.inserts", "true", False),
        ("hoodie.bulkinsert.sort.mode", "GLOBAL_SORT", False),
        ("hoodie.bulkinsert.user.defined.partitioner.sort.columns", "x", True),
        ("hoodie.datasource.write.streaming.retry.count", "7", False),
        ("hoodie.metrics.reporter.type", "GRAPHITE", True),
        ("hoodie.datasource.hive_sync.enable", "false", False),
        ("hoodie.datasource.hive_sync.use_jdbc", "true", True),
        ("hoodie.datasource.hive_sync.bucket_sync", "true", True),
        ("hoodie.aws.glue.endpoint", "x", False),
        ("hoodie.aws.role.arn", "x", True),
        ("hoodie.keygen.timebased.nonsense", "x", True),
        ("HOODIE.EMBED.TIMELINE.SERVER", "true", False),
        ("hoodie.upsert.shuffle.parallelism", "2", False),
        ("hoodie.parquet.outputtimestamptype", "TIMESTAMP_MICROS", False),
        ("hoodie.parquet.outputtimestamptype", "TIMESTAMP_MILLIS", True),
        ("hoodie.parquet.outputtimestamptype", "INT96", True),
        ("hoodie.parquet.writelegacyformat.enabled", "true", True),
        ("hoodie.parquet.writelegacyformat.enabled", "false", False),
        ("path", "x", False),
    ],
)
def test_a_key_is_reported_when_its_value_has_an_unsupported_effect(
    key: str, value: str, is_warned: bool
) -> None:
    assert bool(warnings_of(**{key: value})) is is_warned


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("hoodie.cleen.automatic", "hoodie.clean.automatic"),
        ("Hoodie.Cleaner.polcy", "hoodie.clean.policy"),
        ("spark.hoodie.clean.automatic", "hoodie.clean.automatic"),
        ("hoodie.datasource.streaming.startoffsett", "hoodie.datasource.streaming.startOffset"),
        ("hoodoo.publish.lok", "hoodoo.publish.lock"),
    ],
)
def test_an_unknown_key_is_reported_with_the_nearest_one(key: str, meant: str) -> None:
    (text,) = warnings_of(**{key: "x"})
    assert text == f"unknown property, it is ignored, did you mean {meant}: {key} (from code)"


def test_properties_of_the_table_itself_are_not_reported() -> None:
    raw = {"hoodie.table.metadata.partitions": "files", "hoodie.database.name": "default"}
    raw |= {"hoodie.table.something.of.a.later.release": "1"}
    properties = Layers(environment={}).load(raw)
    assert key_warnings(properties, DECLARED) == ()
    assert keys_without_effect(properties, DECLARED) == {}


MESSAGES = {
    "hoodie.metrics.on": "true",
    "hoodie.datasource.write.recordkey.feild": "id",
    "hoodie.embed.timeline.server": "true",
}


def test_an_opened_table_reports_each_key_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="hoodoo")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with hoodoo.create_table(
            tmp_path / "t", schema=SCHEMA, record_key="id", properties=MESSAGES
        ) as table:
            for value in range(2):
                table.upsert([{"id": "a", "v": value}])
                table.to_arrow()
        assert len(caught) == 1
        with hoodoo.open_table(tmp_path / "t", properties=MESSAGES) as table:
            table.to_arrow()
        assert len(caught) == 2
        hoodoo.open_table(tmp_path / "t").close()
    texts = [str(one.message) for one in caught]
    assert len(texts) == 2
    assert "hoodie.metrics.on" in texts[0]
    assert "did you mean hoodie.datasource.write.recordkey.field" in texts[0]
    assert "timeline.server" not in texts[0]
    silent = [one for one in caplog.records if "options.without_effect" in one.message]
    assert [one.levelno for one in silent] == [logging.DEBUG] * 2
    assert "hoodie.embed.timeline.server" in silent[0].message


def test_a_table_without_metadata_table_takes_hudis_own_default(tmp_path: Path) -> None:
    options = {"hoodie.metadata.enable": "true"}
    with (
        hoodoo.create_table(tmp_path / "t", schema=SCHEMA, record_key="id"),
        hoodoo.open_table(tmp_path / "t", properties=options) as table,
        pytest.warns(UserWarning, match="hoodoo metadata create TABLE"),
    ):
        assert table.upsert([{"id": "a", "v": 1}]).rows_inserted == 1


def test_an_index_that_a_table_lacks_is_told_without_a_metadata_table_too(tmp_path: Path) -> None:
    options = {"hoodie.metadata.record.index.enable": "true"}
    with (
        hoodoo.create_table(tmp_path / "t", schema=SCHEMA, record_key="id"),
        hoodoo.open_table(tmp_path / "t", properties=options) as table,
        pytest.warns(UserWarning, match="hoodoo metadata create TABLE record_index"),
    ):
        assert table.upsert([{"id": "a", "v": 1}]).rows_inserted == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hoodie.datasource.merge.type", "skip_merge"),
        ("hoodie.datasource.read.paths", "a,b"),
        ("hoodie.datasource.read.incr.path.glob", "a*"),
        ("hoodie.datasource.read.schema.use.end.instanttime", "true"),
    ],
)
def test_a_read_whose_result_an_unsupported_option_would_change_is_refused(
    tmp_path: Path, key: str, value: str
) -> None:
    hoodoo.create_table(tmp_path / "t", schema=SCHEMA, record_key="id").close()
    with hoodoo.open_table(tmp_path / "t", properties={key: value}) as table:
        table.upsert([{"id": "a", "v": 1}])
        for read in (table.to_arrow, table.scan, table.pin, lambda: table.changes("earliest")):
            with pytest.raises(SettingError, match=key) as caught:
                read()
            assert caught.value.kind == "unsupported_setting"


def test_the_switch_of_all_services_disables_services_of_writers(tmp_path: Path) -> None:
    options = {"hoodie.clean.commits.retained": "1", "hoodie.table.services.enabled": "false"}
    options |= {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3"}
    with hoodoo.create_table(
        tmp_path / "t", schema=SCHEMA, record_key="id", properties=options
    ) as table:
        for value in range(5):
            table.upsert([{"id": "a", "v": value}])
        assert [one.action for one in table.timeline] == ["commit"] * 5
        assert table.services.clean() is not None, "an explicit call runs it"


def test_the_effect_of_each_key_is_shown() -> None:
    properties = as_property_set({**MESSAGES, "hoodie.index.type": "BUCKET"})
    shown = {one.key: one.effect for one in describe(properties, more=service_options())}
    assert shown["hoodie.metrics.on"] == "warned"
    assert shown["hoodie.datasource.write.recordkey.feild"] == "unknown"
    assert shown["hoodie.embed.timeline.server"] == "none"
    assert shown["hoodie.index.type"] == "done"
    assert shown["hoodie.clean.automatic"] == "done"
