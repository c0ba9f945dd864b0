"""Options become typed settings; contradictions and unsupported options are refused by name."""

from __future__ import annotations

import pickle

import pytest
from pydantic import ValidationError

from filegroups.keys.generators import KeyGenerator
from filegroups.settings.known_keys import (
    UNSUPPORTED,
    UNSUPPORTED_READS,
    hudi_keys,
    is_key_of_hudi,
    key_warnings,
    unsupported_keys,
)
from filegroups.settings.read_settings import ReadSettings
from filegroups.settings.settings import WriteSettings, keys_of_writes_and_reads
from hoodoo.write_requests import operation_of
from hoodoo.writer import agreement
from timeline.errors import SettingError
from timeline.model.commit_metadata import ConcurrencyMode, MergeMode, TableType, WriteOperation
from timeline.properties.options import OptionKind, PropertySet, as_property_set, parse_option
from timeline.properties.setting_enums import (
    BloomType,
    CommitLockMode,
    FailedWritesPolicy,
    InsertDuplicates,
    QueryType,
)
from timeline.writer_registry import AGREED_BY

OCC = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
KEYGEN = "hoodie.datasource.write.keygenerator"
# ours on purpose, see the module docstring
OUR_DEFAULTS = {
    "hoodie.parquet.compression.codec": "snappy",
    "hoodie.write.num.retries.on.conflict.failures": "4",
    "hoodie.write.concurrency.early.conflict.detection.enable": "true",
    "hoodie.write.concurrency.early.conflict.detection.strategy": "published",
    "hoodie.metadata.enable": None,
    "hoodie.bloom.index.use.metadata": None,
    "hoodie.table.timeline.timezone": "UTC",
    "hoodie.write.complex.keygen.new.encoding": None,
    "hoodie.spark.sql.insert.into.operation": None,
    "hoodie.sql.insert.mode": None,
}
# Hudi derives these from the engine or from other options; here they are explicit or open.
CHOSEN_ELSEWHERE = {
    "hoodie.index.type",
    "hoodie.clean.failed.writes.policy",
    "hoodie.datasource.write.keygenerator.type",
    "hoodie.logfile.data.block.format",
}


OWN = keys_of_writes_and_reads()


def is_known(key: str) -> bool:
    return key.casefold() in OWN or is_key_of_hudi(key)


def write(**properties: str) -> WriteSettings:
    return WriteSettings.from_properties(properties)


def refusal(properties: dict[str, str]) -> SettingError:
    with pytest.raises(SettingError) as caught:
        WriteSettings.from_properties(properties)
    return caught.value


def test_defaults_without_any_property() -> None:
    settings = write()
    assert settings.operation is WriteOperation.UPSERT
    assert settings.table_type is TableType.COPY_ON_WRITE
    assert settings.table_version == 9
    assert settings.conflict_retries == 4
    assert settings.metadata_enable is None
    assert settings.timeline_zone == "UTC"
    assert settings.heartbeat_expiry_ms == 120_000
    assert settings.publish_lock is CommitLockMode.LOCK
    assert settings.commit_attempts_max == 16
    assert settings.origin("operation") == "default"


@pytest.mark.parametrize(
    "option", [*WriteSettings.options.values(), *ReadSettings.options.values()]
)
def test_a_default_is_hudis_unless_its_option_names_a_reason(option: object) -> None:
    key, default = option.key, option.default  # type: ignore[attr-defined]
    known = hudi_keys().get(key.casefold())
    if key in OUR_DEFAULTS:
        assert default == OUR_DEFAULTS[key]
    elif known is not None and key not in CHOSEN_ELSEWHERE:
        assert default == (known.default or None)  # an empty text is none


def test_every_default_is_accepted_by_its_own_option() -> None:
    for option in (*WriteSettings.options.values(), *ReadSettings.options.values()):
        if option.default is not None:
            parse_option(option, option.default)
        assert bool(option.choices) is (option.kind is OptionKind.ENUM)
        assert option.doc


def test_every_option_is_a_known_key_with_one_owner() -> None:
    spellings = [text for option in WriteSettings.options.values() for text in option.spellings]
    assert len(set(spellings)) == len(spellings)
    assert all(is_known(text) for text in (*spellings, *UNSUPPORTED, *UNSUPPORTED_READS))


def test_a_typical_hudi_job_is_read() -> None:
    settings = write(
        **{
            "hoodie.table.name": "flights",
            "hoodie.datasource.write.operation": "UPSERT",
            "hoodie.datasource.write.recordkey.field": "carrier, flight",
            "hoodie.datasource.write.partitionpath.field": "origin",
            "hoodie.datasource.write.precombine.field": "ts",
            "hoodie.datasource.write.hive_style_partitioning": "true",
            "hoodie.write.table.version": "8",
            "hoodie.index.bloom.fpp": "0.01",
            "hoodie.bloom.index.filter.type": "simple",
            "hoodie.parquet.compression.codec": "ZSTD",
            "hoodie.metadata.enable": "false",
            "hoodie.upsert.shuffle.parallelism": "4",
        }
    )
    assert settings.table_name == "flights"
    assert settings.record_key_fields == ("carrier", "flight")
    assert settings.partition_fields == ("origin",)
    assert settings.effective_merge_mode is MergeMode.EVENT_TIME_ORDERING
    assert settings.effective_key_generator is KeyGenerator.COMPLEX
    assert settings.hive_style_partitioning is True
    assert settings.table_version == 8
    assert settings.bloom_false_positive_rate == 0.01
    assert settings.bloom_type is BloomType.SIMPLE
    assert settings.parquet_compression == "zstd"
    assert settings.metadata_enable is False
    assert settings.shuffle_tasks == 4
    assert settings.origin("table_name") == "code"


def test_the_tables_own_names_are_understood() -> None:
    settings = write(
        **{
            "hoodie.table.version": "8",
            "hoodie.table.type": "COPY_ON_WRITE",
            "hoodie.table.recordkey.fields": "id",
            "hoodie.table.partition.fields": "day",
            "hoodie.table.ordering.fields": "ts",
            "hoodie.table.keygenerator.type": "SIMPLE",
            "hoodie.record.merge.mode": "EVENT_TIME_ORDERING",
            "hoodie.compaction.payload.class": (
                "org.apache.hudi.common.model.DefaultHoodieRecordPayload"
            ),
            "hoodie.record.merge.strategy.id": "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5",
        }
    )
    assert settings.table_version == 8
    assert settings.record_key_fields == ("id",)
    assert settings.merge_mode is MergeMode.EVENT_TIME_ORDERING
    assert settings.key_generator is KeyGenerator.SIMPLE


def test_lower_case_keys_of_spark_are_understood() -> None:
    settings = write(**{"hoodie.datasource.write.recordkey.field".lower(): "id"})
    assert settings.record_key_fields == ("id",)


# many writers


def test_many_writers_force_lazy_clean_up_of_failed_writes() -> None:
    settings = write(**OCC)
    assert settings.concurrency_mode is ConcurrencyMode.OPTIMISTIC_CONCURRENCY_CONTROL
    assert settings.multi_writer is True
    assert settings.failed_writes_policy is FailedWritesPolicy.LAZY


@pytest.mark.spec("RB-11")
def test_a_single_writer_cleans_up_eagerly() -> None:
    assert write().failed_writes_policy is FailedWritesPolicy.EAGER
    settings = WriteSettings(concurrency_mode=ConcurrencyMode.OPTIMISTIC_CONCURRENCY_CONTROL)
    assert settings.failed_writes_policy is FailedWritesPolicy.LAZY


def test_eager_clean_up_with_many_writers_is_refused() -> None:
    error = refusal({**OCC, "hoodie.cleaner.policy.failed.writes": "eager"})
    assert error.kind == "setting_contradiction"
    assert error.fields["key"] == "hoodie.clean.failed.writes.policy"
    assert error.fields["layer"] == "code"


@pytest.mark.parametrize("lock", ["none", "auto"])
def test_foreign_writers_without_the_lock_are_refused(lock: str) -> None:
    """FOR-1: one commit without the lock is enough to lose rows of the other engine."""
    error = refusal({"hoodoo.foreign.writers": "expected", "hoodoo.publish.lock": lock})
    assert error.kind == "setting_contradiction"


def test_writers_compare_the_settings_that_must_agree() -> None:
    one = agreement(write(**OCC), lock_provider="filesystem", lock_identity="a")
    other = agreement(write(), lock_provider="filesystem", lock_identity="a")
    different = {name for name in one if one[name] != other[name]}
    assert different == {"mode", "failed_writes_policy"}
    assert one["timeline_zone"] == "UTC"
    assert one["lock_identity"] == "a"


def test_settings_that_may_differ_between_writers_are_not_compared() -> None:
    one = write(**{"hoodie.parquet.max.file.size": "1000", "hoodie.write.application.id": "x"})
    other = write(**{"hoodie.write.num.retries.on.conflict.failures": "9"})
    assert agreement(one, lock_provider="p", lock_identity="i") == agreement(
        other, lock_provider="p", lock_identity="i"
    )


def test_a_disagreement_names_options_that_exist() -> None:
    assert set(agreement(write(), lock_provider="p", lock_identity="i")) >= set(AGREED_BY)
    words = " ".join(AGREED_BY.values()).split()
    keys = [word for word in words if word.startswith(("hoodie.", "hoodoo."))]
    assert len(keys) >= len(AGREED_BY)
    assert [key for key in keys if not key.endswith(".*") and not is_known(key)] == []


# contradictions and ranges


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({"hoodie.client.heartbeat.interval_in_ms": "999"}, "setting_value"),
        ({"hoodie.client.heartbeat.tolerable.misses": "0"}, "setting_value"),
        ({"hoodie.index.bloom.fpp": "1"}, "setting_value"),
        ({"hoodie.parquet.max.file.size": "0"}, "setting_value"),
        ({"hoodie.parquet.small.file.limit": "-1"}, "setting_value"),
        ({"hoodie.write.num.retries.on.conflict.failures": "many"}, "setting_value"),
        ({"hoodie.datasource.write.recordkey.field": "a,b,a"}, "setting_value"),
        ({"hoodie.write.commit.retry.base.ms": "20000"}, "setting_contradiction"),
        ({"hoodie.write.table.version": "6"}, "unsupported_setting"),
        (
            {KEYGEN + ".type": "SIMPLE", "hoodie.datasource.write.recordkey.field": "a,b"},
            "setting_contradiction",
        ),
        (
            {KEYGEN + ".type": "NON_PARTITION", "hoodie.table.partition.fields": "a"},
            "setting_contradiction",
        ),
        (
            {
                "hoodie.write.record.merge.mode": "COMMIT_TIME_ORDERING",
                "hoodie.datasource.write.payload.class": (
                    "org.apache.hudi.common.model.DefaultHoodieRecordPayload"
                ),
            },
            "setting_contradiction",
        ),
    ],
)
def test_a_wrong_or_contradicting_setting_is_refused(properties: dict[str, str], kind: str) -> None:
    assert refusal(properties).kind == kind


def test_contradictions_are_refused_in_code_too() -> None:
    with pytest.raises(SettingError) as caught:
        WriteSettings(heartbeat_interval_ms=1)
    assert caught.value.fields["key"] == "hoodie.client.heartbeat.interval_in_ms"
    assert caught.value.fields["value"] == "1"


def test_settings_do_not_change() -> None:
    settings = write()
    with pytest.raises(ValidationError):
        settings.table_version = 8  # type: ignore[misc]


def test_settings_travel_between_processes() -> None:
    settings = write(**OCC, _team="x")
    assert pickle.loads(pickle.dumps(settings)) == settings


# unsupported options


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hoodie.avro.schema.externalTransformation", "true"),
        ("hoodie.internal.schema", "{}"),
        ("hoodie.bootstrap.base.path", "old"),
        ("hoodie.bulkinsert.user.defined.partitioner.class", "com.example.Partitioner"),
        ("hoodie.index.type", "INMEMORY"),
        ("hoodie.precommit.validators", "com.example.Validator"),
        (KEYGEN + ".class", "os.system"),
        (KEYGEN + ".type", "USER_PROVIDED"),
        ("hoodie.write.record.merge.mode", "CUSTOM"),
        ("hoodie.datasource.write.payload.class", "com.example.Payload"),
        ("hoodie.write.record.merge.strategy.id", "1897ef5f-18bc-4557-939c-9d6a8afd1519"),
    ],
)
def test_a_setting_that_would_change_the_table_is_refused_by_name(key: str, value: str) -> None:
    error = refusal({key: value})
    assert error.kind == "unsupported_setting"
    assert key in error.message
    assert value in error.message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hoodie.metadata.enable", "FALSE"),
        ("hoodie.index.type", "bloom"),
        ("hoodie.bulkinsert.shuffle.parallelism", "8"),
        ("hoodie.embed.timeline.server", "true"),
        ("hoodie.datasource.write.row.writer.enable", "true"),
        ("hoodie.write.record.merge.custom.implementation.classes", "com.example.Merger"),
        ("hoodie.metrics.on", "false"),
        ("hoodie.bulkinsert.sort.mode", "none"),
        ("hoodie.datasource.hive_sync.enable", "false"),
        ("HOODIE.Datasource.hive_sync.bucket_sync", "false"),
        ("hoodie.parquet.write.utc-timezone.enabled", "true"),
    ],
)
def test_a_setting_without_effect_is_accepted_without_a_warning(key: str, value: str) -> None:
    properties = as_property_set({key: value})
    WriteSettings.from_properties(properties)
    assert key_warnings(properties, OWN) == ()


def test_every_refused_property_is_listed() -> None:
    properties = as_property_set(
        {"hoodie.metaserver.enabled": "true", "hoodie.table.format": "iceberg"}
    )
    assert [found.key for found in unsupported_keys(properties)] == [
        "hoodie.table.format",
        "hoodie.metaserver.enabled",
    ]


def test_no_default_of_hudis_is_refused() -> None:
    defaults = {known.key: known.default for known in hudi_keys().values() if known.default}
    for rules in (UNSUPPORTED, UNSUPPORTED_READS):
        assert unsupported_keys(as_property_set(defaults), rules) == ()


# keys


def test_a_misspelled_key_names_the_nearest_known_one() -> None:
    properties = as_property_set({"hoodie.datasource.write.recordkey.fields": "id"})
    (text,) = key_warnings(properties, OWN)
    assert "did you mean hoodie.datasource.write.recordkey.field:" in text
    assert "(from code)" in text


def test_keys_of_other_systems_are_not_checked() -> None:
    properties = as_property_set({"path": "x", "mergeSchema": "true", "hoodoo.mine": "1"})
    assert key_warnings(properties, ["hoodoo.mine"]) == ()
    assert len(key_warnings(properties, OWN)) == 1


def test_a_switch_without_effect_is_reported() -> None:
    (text,) = key_warnings(as_property_set({"hoodie.errortable.enable": "true"}), OWN)
    assert "no effect" in text


# details


def test_dropping_duplicates_may_be_spelled_as_in_older_releases() -> None:
    old = write(**{"hoodie.datasource.write.insert.drop.duplicates": "true"})
    assert old.insert_duplicates is InsertDuplicates.DROP
    assert write(**{"hoodie.datasource.insert.dup.policy": "fail"}).insert_duplicates is (
        InsertDuplicates.FAIL
    )


def test_an_upsert_by_options_that_drops_duplicates_is_an_insert_as_in_hudi() -> None:
    drops = {"hoodie.datasource.write.insert.drop.duplicates": "true"}
    assert operation_of(write(**drops)) is WriteOperation.INSERT
    assert operation_of(write(**drops), "upsert") is WriteOperation.UPSERT
    bulk = {**drops, "hoodie.datasource.write.operation": "bulk_insert"}
    assert operation_of(write(**bulk)) is WriteOperation.BULK_INSERT


def test_the_merge_mode_follows_the_ordering_fields() -> None:
    assert write().effective_merge_mode is MergeMode.COMMIT_TIME_ORDERING
    with_order = write(**{"hoodie.datasource.write.precombine.field": "ts"})
    assert with_order.effective_merge_mode is MergeMode.EVENT_TIME_ORDERING
    by_payload = write(
        **{
            "hoodie.datasource.write.precombine.field": "ts",
            "hoodie.datasource.write.payload.class": (
                "org.apache.hudi.common.model.OverwriteWithLatestAvroPayload"
            ),
        }
    )
    assert by_payload.effective_merge_mode is MergeMode.COMMIT_TIME_ORDERING


@pytest.mark.parametrize("name", ["compaction.record", "datasource.write.record"])
def test_a_strategy_of_hudi_0_leaves_the_merge_mode_to_the_payload_class(name: str) -> None:
    """Its default is called event time now; tables of version 6 state both."""
    old = {
        f"hoodie.{name}.merger.strategy": "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5",
        "hoodie.datasource.write.payload.class": (
            "org.apache.hudi.common.model.OverwriteWithLatestAvroPayload"
        ),
    }
    assert write(**old).merge_mode is MergeMode.COMMIT_TIME_ORDERING
    old["hoodie.record.merge.strategy.id"] = old.pop(f"hoodie.{name}.merger.strategy")
    assert refusal(old).kind == "setting_contradiction"


def test_prefixed_properties_go_into_the_commit_but_never_secrets() -> None:
    settings = write(**{"_team": "ops", "_api.token": "canary", "other": "x"})
    assert settings.extra_metadata == {"_team": "ops"}


def test_the_prefix_of_commit_metadata_may_be_chosen() -> None:
    prefix = "hoodie.datasource.write.commitmeta.key.prefix"
    settings = write(**{prefix: "note.", "note.a": "1", "_b": "2"})
    assert settings.extra_metadata == {"note.a": "1"}
    assert write(**{prefix: "", "_b": "2"}).extra_metadata == {}


def test_a_setting_remembers_its_layer() -> None:
    properties = (
        PropertySet()
        .with_layer("file", {"hoodie.write.num.retries.on.conflict.failures": "2"})
        .with_layer("code", {"hoodie.write.application.id": "job"})
    )
    settings = WriteSettings.from_properties(properties)
    assert settings.origin("conflict_retries") == "file"
    assert settings.origin("application_id") == "code"
    assert settings.origin("table_version") == "default"


# reads


def test_a_read_is_a_snapshot_read_by_default() -> None:
    assert ReadSettings.from_properties({}).query_type is QueryType.SNAPSHOT
    older = {"hoodie.datasource.view.type": "read_optimized"}
    assert ReadSettings.from_properties(older).query_type is QueryType.READ_OPTIMIZED


def test_an_incremental_read_takes_its_range() -> None:
    settings = ReadSettings.from_properties(
        {
            "hoodie.datasource.query.type": "incremental",
            "hoodie.datasource.read.begin.instanttime": "20261121100000000",
            "hoodie.datasource.read.end.instanttime": "20261122100000000",
        }
    )
    assert settings.begin_time == "20261121100000000"
    assert settings.end_time == "20261122100000000"


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({"hoodie.datasource.query.type": "incremental"}, "setting_missing"),
        ({"hoodie.datasource.query.type": "realtime"}, "setting_value"),
        ({"hoodie.datasource.query.incremental.format": "every"}, "setting_value"),
        (
            {
                "hoodie.datasource.query.type": "incremental",
                "hoodie.datasource.read.begin.instanttime": "earliest",
                "as.of.instant": "2026-11-21",
            },
            "setting_contradiction",
        ),
    ],
)
def test_a_read_that_contradicts_itself_is_refused(properties: dict[str, str], kind: str) -> None:
    with pytest.raises(SettingError) as caught:
        ReadSettings.from_properties(properties)
    assert caught.value.kind == kind


def test_the_metadata_table_option_does_not_matter_for_reads() -> None:
    ReadSettings.from_properties({"hoodie.metadata.enable": "true"})
