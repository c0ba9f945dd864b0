"""
``hoodoo config check`` refuses settings that a first write would refuse, also without a table.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.cli import run, table_with_rows

OCC = "hoodie.write.concurrency.mode=OPTIMISTIC_CONCURRENCY_CONTROL"
PROVIDER = "hoodie.write.lock.provider="
KEEPER = "org.apache.hudi.client.transaction.lock.ZookeeperBasedLockProvider"


def checked(*settings: str, table: Path | None = None) -> tuple[int, list[tuple[str, str]]]:
    """The exit code, and kind and key of each error."""
    place = [] if table is None else [table]
    answer = run("config", "check", *place, *(part for text in settings for part in ("--hoodie-conf", text)))  # fmt: skip
    errors = [one for one in answer.document["problems"] if one["severity"] == "error"]
    return answer.exit_code, [(one["kind"], one["key"]) for one in errors]


@pytest.mark.parametrize(
    ("settings", "kind", "key"),
    [
        ([f"{PROVIDER}nosuch"], "unknown_provider", ""),
        ([f"{PROVIDER}zookeeper"], "setting", "hoodie.write.lock.zookeeper.url"),
        ([f"{PROVIDER}sql"], "setting_value", "hoodoo.lock.sql.url"),
        (["hoodoo.slots.backend=sql"], "setting_value", "hoodoo.lock.sql.url"),
        (["hoodoo.slots.backend=nosuch"], "setting_value", "hoodoo.slots.backend"),
        (
            ["hoodie.write.lock.conflict.resolution.strategy=nosuch"],
            "setting_value",
            "hoodie.write.lock.conflict.resolution.strategy",
        ),
        (["hoodoo.write.bucket.range=7-3"], "setting_value", "hoodoo.write.bucket.range"),
        (
            ["hoodie.keep.min.commits=20", "hoodie.clean.commits.retained=20"],
            "archive_retention",
            "hoodie.keep.min.commits",
        ),
        (
            ["hoodie.clustering.plan.strategy.class=nosuch"],
            "unsupported_setting",
            "hoodie.clustering.plan.strategy.class",
        ),
    ],
)
def test_settings_that_no_writer_could_use_are_reported(
    settings: list[str], kind: str, key: str
) -> None:
    code, errors = checked(OCC, *settings)
    assert code == 5
    assert [each for _, each in errors] == [key], errors
    assert [each for each, _ in errors] == [kind]


@pytest.mark.parametrize(
    "settings",
    [
        [],
        [f"{PROVIDER}filesystem"],
        [f"{PROVIDER}storage_based"],  # of a table that is still to be named
        [f"{PROVIDER}dynamodb", "hoodie.write.lock.dynamodb.region=us-east-1"],
        [
            f"{PROVIDER}{KEEPER}",
            "hoodie.write.lock.zookeeper.url=h:2181",
            "hoodie.write.lock.zookeeper.base_path=/locks",
            "hoodie.write.lock.zookeeper.lock_key=t",
        ],
        ["hoodie.write.lock.conflict.resolution.strategy=prefer_writer"],
    ],
)
def test_settings_that_a_table_may_accept_are_accepted(settings: list[str]) -> None:
    """A name that the table has, and its address, may be absent; no server is asked."""
    assert checked(OCC, *settings) == (0, [])


def test_a_mode_that_is_not_for_the_table_is_a_problem_of_the_settings(tmp_path: Path) -> None:
    table = tmp_path / "t"
    run("table", "create", table, "--key", "id", "--schema", "id string, v long")
    mode = "hoodie.write.concurrency.mode=NON_BLOCKING_CONCURRENCY_CONTROL"
    settings = (mode, f"{PROVIDER}filesystem")
    kind = ("setting_contradiction", "hoodie.datasource.write.table.type")
    assert checked(*settings, table=table) == (5, [kind])
    assert checked(OCC, f"{PROVIDER}nosuch", table=table) == (5, [("unknown_provider", "")])
    assert checked(OCC, f"{PROVIDER}filesystem", table=table) == (0, [])


def test_slots_that_the_table_has_elsewhere_are_a_problem(tmp_path: Path) -> None:
    table = tmp_path / "t"
    sql = [
        OCC,
        f"{PROVIDER}sql",
        "hoodoo.slots.backend=sql",
        f"hoodoo.lock.sql.url={tmp_path}/slots.db",
        "hoodoo.lock.sql.create_table=true",
    ]
    rows = tmp_path / "rows.csv"
    rows.write_text("id\n1\n", encoding="utf-8")
    words = [part for text in sql for part in ("--hoodie-conf", text)]
    made = run("write", table, "--input", rows, "--key", "id", *words)
    assert made.exit_code == 0, made.err
    assert checked(*sql, table=table) == (0, [])
    assert checked(OCC, f"{PROVIDER}filesystem", table=table) == (5, [("slots_elsewhere", "")])


@pytest.mark.parametrize(("preset", "retries"), [("streaming", "8"), ("BACKFILL", "32")])
def test_a_value_of_a_preset_is_shown_with_the_preset_as_its_layer(
    preset: str, retries: str
) -> None:
    def shown(*more: str) -> dict[str, tuple[str, str]]:
        words = ("config", "show", "--hoodie-conf", f"hoodoo.retry.preset={preset}", *more)
        return {one["key"]: (one["value"], one["layer"]) for one in run(*words).document["values"]}

    key = "hoodie.write.num.retries.on.conflict.failures"
    assert shown()[key] == (retries, f"hoodoo.retry.preset={preset.lower()}")
    assert shown("--hoodie-conf", f"{key}=3")[key] == ("3", "--hoodie-conf")


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ("hoodie.write.partial.update.schema={", "hoodie.write.partial.update.schema"),
        ("hoodoo.bucket.index.hash.field=name", "hoodie.bucket.index.hash.field"),
    ],
)
def test_settings_that_every_write_to_the_table_would_refuse_are_reported(
    tmp_path: Path, settings: str, key: str
) -> None:
    table = table_with_rows(tmp_path)
    bucket = ("hoodie.index.type=BUCKET",) if "bucket" in settings else ()
    code, errors = checked(settings, *bucket, table=table)
    assert (code, [each for _, each in errors]) == (5, [key])


def test_a_lock_that_another_engine_does_not_take_is_a_problem_where_it_is_expected(
    tmp_path: Path,
) -> None:
    settings = (OCC, f"{PROVIDER}filesystem", "hoodoo.foreign.writers=expected")
    code, errors = checked(*settings, table=table_with_rows(tmp_path))
    assert (code, [kind for kind, _ in errors]) == (5, ["lock_not_shared"])
