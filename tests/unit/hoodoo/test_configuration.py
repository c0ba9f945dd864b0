"""Layers apply in their order, every value names its layer, damaged input is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from hoodoo.configuration import Layers, Severity, check, describe
from lockproviders.settings import LockSettings
from tableservices.archiving.plan import ArchivingSettings
from tableservices.cleaning.plan import CleaningSettings
from tableservices.clustering.settings import ClusteringSettings
from tableservices.compaction.plan import CompactionSettings
from tableservices.logcompaction.execute import LogCompactionSettings
from tableservices.ttl.execute import TtlSettings
from tableservices.worker import WorkerSettings
from timeline.errors import SettingError
from timeline.properties.options import Option, OptionSettings, as_property_set

KEY = "hoodie.write.application.id"


def refusal(**arguments: object) -> SettingError:
    with pytest.raises(SettingError) as caught:
        Layers(environment={}, **arguments).load()  # type: ignore[arg-type]
    return caught.value


def file(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def test_each_layer_wins_over_the_ones_before(tmp_path: Path) -> None:
    file(tmp_path, "hudi-defaults.conf", b"hoodie.write.application.id   defaults\n")
    props = file(tmp_path, "a.properties", b"hoodie.write.application.id=file\n")
    layers = {
        "environment": {"HUDI_CONF_DIR": str(tmp_path)},
        "table": {KEY: "table"},
        "props": (props,),
        "hoodie_conf": (KEY + "=line",),
        "session": {"spark." + KEY: "session", "spark.master": "local"},
        "code": {KEY: "code"},
    }
    expected = [
        ("defaults", str(tmp_path / "hudi-defaults.conf")),
        ("table", "hoodie.properties"),
        ("file", str(props)),
        ("line", "--hoodie-conf"),
        ("session", "spark session"),
        ("code", "code"),
    ]
    given: dict[str, object] = {}
    table: dict[str, str] | None = None
    for (name, value), (text, layer) in zip(layers.items(), expected, strict=True):
        if name == "table":
            table = {KEY: "table"}
        else:
            given[name] = value
        properties = Layers(**given).load(table)  # type: ignore[arg-type]
        assert (properties[KEY], properties.layer_of(KEY)) == (text, layer)
    assert "spark.master" not in properties


def test_the_defaults_file_takes_blanks_or_an_equals_sign(tmp_path: Path) -> None:
    content = b"# note\n\nhoodie.table.name    flights\nhoodie.clean.policy=KEEP_LATEST_COMMITS\n"
    file(tmp_path, "hudi-defaults.conf", content)
    properties = Layers(environment={"HUDI_CONF_DIR": str(tmp_path)}).load()
    assert dict(properties) == {
        "hoodie.table.name": "flights",
        "hoodie.clean.policy": "KEEP_LATEST_COMMITS",
    }


def test_of_several_files_the_last_one_wins(tmp_path: Path) -> None:
    one = file(tmp_path, "one.properties", b"a=1\nb=1\n")
    two = file(tmp_path, "two.properties", b"b=2\n")
    properties = Layers(environment={}, props=(one, str(two), {"c": 3})).load()
    assert dict(properties) == {"a": "1", "b": "2", "c": "3"}
    assert properties.layer_of("b") == str(two)


def test_a_file_in_utf8_keeps_its_letters(tmp_path: Path) -> None:
    path = file(tmp_path, "u.properties", "\ufeffa=Zürich \U0001f6eb".encode())
    assert Layers(environment={}, props=(path,)).load()["a"] == "Zürich \U0001f6eb"


def test_a_missing_defaults_file_is_refused_when_its_folder_was_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError) as caught:
        Layers(environment={"HUDI_CONF_DIR": str(tmp_path)}).load()
    assert str(tmp_path / "hudi-defaults.conf") in caught.value.message


@pytest.mark.parametrize(
    "content",
    [b"a=1\0", b"a=\xff\xfe", b"a=\\u12", b"include=bad.properties\n", b"a" * ((1 << 20) + 1)],
)
def test_a_damaged_file_is_refused_by_its_name(tmp_path: Path, content: bytes) -> None:
    path = file(tmp_path, "bad.properties", content)
    error = refusal(props=(path,))
    assert error.kind == "settings_file"
    assert str(path) in error.message


def test_a_file_includes_others_as_in_java_and_its_own_keys_win(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "base.properties").write_text("a=1\nb=1\ninclude = more/far.properties\n")
    (tmp_path / "more" / "far.properties").write_text("b=0\nc=Zürich\n", encoding="utf-8")
    path = file(tmp_path, "kafka.properties", b"include=base.properties\n# text\na=2\n")
    for named in (str(path), f"file://{path}"):
        found = dict(Layers(environment={}, props=(named,)).load())
        assert found == {"a": "2", "b": "1", "c": "Zürich"}
    (tmp_path / "more" / "far.properties").unlink()
    assert "far.properties" in refusal(props=(path,)).message


def test_a_missing_or_unreadable_file_is_refused_by_its_name(tmp_path: Path) -> None:
    for path in (tmp_path / "none.properties", tmp_path):
        error = refusal(props=(str(path),))
        assert error.kind == "settings_file"
        assert error.fields["value"] == str(path)


@pytest.mark.parametrize("text", ["hoodie.table.name", "=x", ""])
def test_a_text_on_the_command_line_must_be_key_and_value(text: str) -> None:
    assert refusal(hoodie_conf=(text,)).kind == "setting_form"


def test_a_value_on_the_command_line_may_hold_equals_signs() -> None:
    properties = Layers(environment={}, hoodie_conf=("a=b=c",)).load()
    assert properties["a"] == "b=c"


def test_a_secret_on_the_command_line_is_refused_and_not_shown() -> None:
    error = refusal(hoodie_conf=("hoodie.datasource.hive_sync.password=canary",))
    assert error.kind == "secret_on_command_line"
    assert "canary" not in str(error.as_document())


def test_every_effective_value_is_described_with_its_layer() -> None:
    properties = as_property_set(
        {
            "hoodie.cleaner.commits.retained": "7",
            KEY: "job",
            "hoodie.datasource.hive_sync.password": "canary",
        }
    )
    rows = {row.key: row for row in describe(properties)}
    assert (rows[KEY].value, rows[KEY].layer, rows[KEY].default) == ("job", "code", "Unknown")
    assert rows["hoodie.cleaner.commits.retained"].default == "10"
    assert rows["hoodie.datasource.hive_sync.password"].value == "***"
    version = rows["hoodie.write.table.version"]
    assert (version.value, version.layer) == ("9", "default")
    assert rows["hoodie.write.lock.wait_time_ms"].value == "60000"
    assert list(rows) == sorted(rows)


def test_options_of_services_are_described_and_known() -> None:
    own = Option(key="hoodoo.worker.period.ms", default="10000")
    rows = {row.key: row.value for row in describe(as_property_set({}), more=[own])}
    assert rows["hoodoo.worker.period.ms"] == "10000"
    properties = as_property_set({"hoodoo.worker.period.ms": "5"})
    assert check(properties, more=[own]) == ()
    assert len(check(properties)) == 1


@pytest.mark.parametrize(
    "key",
    [
        "hoodoo.publish.lock",
        "hoodoo.reader.lease.ms",
        "hoodoo.clock.max.ahead.ms",
        "hoodoo.limits.timeline.instants.max",
        "hoodoo.storage.durability",
        "hoodoo.lock.hold.budget.ms",
    ],
)
def test_a_tables_own_file_cannot_set_an_option_of_the_caller_alone(key: str) -> None:
    table = {key.upper(): "1", KEY: "job"}
    assert set(Layers(environment={}).load(table)) == {KEY}
    assert key in Layers(environment={}, hoodie_conf=(f"{key}=1",)).load()


@pytest.mark.parametrize(
    "settings",
    [
        LockSettings,
        CleaningSettings,
        ArchivingSettings,
        CompactionSettings,
        LogCompactionSettings,
        ClusteringSettings,
        TtlSettings,
        WorkerSettings,
    ],
)
def test_a_default_that_is_written_out_changes_nothing(settings: type[OptionSettings]) -> None:
    defaults = {one.key: one.default for one in settings.options.values() if one.default}
    assert settings.from_properties(defaults) == settings()
    assert all(one.doc for one in settings.options.values())


def test_a_check_finds_every_problem() -> None:
    properties = as_property_set(
        {
            "hoodie.client.heartbeat.interval_in_ms": "soon",
            "hoodie.parquet.max.file.size": "big",
            "hoodie.metaserver.enabled": "true",
            "hoodie.write.lock.wait_time_ms": "-1",
            "hoodie.tabel.name": "x",
        }
    )
    found = check(properties)
    assert {(problem.severity, problem.key) for problem in found} == {
        (Severity.ERROR, "hoodie.client.heartbeat.interval_in_ms"),
        (Severity.ERROR, "hoodie.parquet.max.file.size"),
        (Severity.ERROR, "hoodie.metaserver.enabled"),
        (Severity.ERROR, "hoodie.write.lock.wait_time_ms"),
        (Severity.WARNING, ""),
    }
    assert "hoodie.table.name" in found[-1].message


def test_a_configuration_without_problems_has_none() -> None:
    assert check(as_property_set({"hoodie.table.name": "x"})) == ()


def test_a_session_also_describes_object_store_options() -> None:
    found = Layers(
        environment={},
        session={
            "spark.hadoop.fs.s3a.endpoint": "https://s3.example",
            "spark.hadoop.fs.s3a.secret.key": "canary",
            "spark.hadoop.io.nativeio": "x",
        },
    ).load()
    assert dict(found) == {
        "fs.s3a.endpoint": "https://s3.example",
        "fs.s3a.secret.key": "canary",
    }
    assert "canary" not in repr(describe(found))
