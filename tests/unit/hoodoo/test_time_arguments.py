"""Every verb with a time argument accepts the same forms, in the zone of the table."""

# ruff: noqa: DTZ007, DTZ011 - a datetime without a zone is what is tried

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from click.testing import CliRunner

import hoodoo
from hoodoo.cli.app import main
from hoodoo.inspect.explain import explain_instant
from timeline.errors import HoodooError, InvalidInputError

SCHEMA = pa.schema([("id", pa.string()), ("v", pa.int64())])
LOCAL = {"hoodie.table.timeline.timezone": "LOCAL"}


def made(path: Path, **properties: str) -> tuple[hoodoo.Table, list[str]]:
    """A table of three writes of one row, and the times they were requested."""
    table = hoodoo.create_table(
        str(path / "t"), schema=SCHEMA, record_key="id", properties=properties
    )
    return table, [table.upsert([{"id": "a", "v": v}]).requested_time for v in range(3)]


def naive(time: str) -> datetime:
    return datetime.strptime(time[:14], "%Y%m%d%H%M%S") + timedelta(milliseconds=int(time[14:]))


def forms(time: str) -> list[Any]:
    moment = naive(time)
    return [
        time,
        int(time),
        np.int64(time),
        moment,
        pd.Timestamp(moment),
        np.datetime64(moment),
        f"{moment:%Y-%m-%d %H:%M:%S.}{time[14:]}",
    ]


@pytest.fixture(params=["UTC", "Asia/Kolkata"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TZ", request.param)
    return str(request.param)


def test_reads_accept_every_time_form_in_the_table_s_zone(tmp_path: Path, zone: str) -> None:
    table, times = made(tmp_path, **LOCAL)
    for form in forms(times[1]):
        assert table.as_of(form).to_arrow()["v"].to_pylist() == [1]
        assert [one.base_instant_time for one in table.as_of(form).file_slices()] == [times[1]]
    completed = {one.requested_time: one.completion_time for one in table.timeline}
    for form in forms(str(completed[times[1]])):
        assert table.changes(form).read_all()["v"].to_pylist() == [2]
        assert table.changes("earliest", form).read_all()["v"].to_pylist() == [1]
        assert len(table.changes(since=form, images=True).read_all()) == 1
    tomorrow = date.today() + timedelta(days=2)
    assert table.as_of(tomorrow).to_arrow()["v"].to_pylist() == [2]
    aware = datetime.now(UTC) + timedelta(hours=1)
    assert table.as_of(aware).to_arrow()["v"].to_pylist() == [2]
    if zone != "UTC":  # on the table's clock this is hours ago, before the table
        with pytest.raises(HoodooError):
            table.as_of(aware.replace(tzinfo=None)).to_arrow()


@pytest.mark.parametrize("number", range(7))
def test_verbs_that_name_an_instant_accept_every_time_form(
    tmp_path: Path, zone: str, number: int
) -> None:
    table, times = made(tmp_path, **LOCAL)
    named = [forms(time)[number] for time in times]
    assert table.savepoint(named[1]).requested_time == times[1]
    assert table.resolve(named[1]).outcome.value == "published"
    story = explain_instant(table.context, named[1])
    assert (story.requested_time, story.zone.name) == (times[1], zone)
    assert table.rollback(named[2]).requested_time is not None
    assert table.restore(named[1]) is None  # no later instant exists
    table.delete_savepoint(named[1])
    assert table.savepoints == []
    assert table.restore(named[0]).restored_to == times[0]
    assert table.to_arrow()["v"].to_pylist() == [0]
    for verb in (table.services.execute, table.services.cancel):
        with pytest.raises(hoodoo.HoodooError) as caught:
            verb(named[0])
        assert caught.value.kind == "plan_unknown"


VERBS: dict[str, Callable[[hoodoo.Table, Any], object]] = {
    "as_of": lambda table, moment: table.as_of(moment),
    "file_slices": lambda table, moment: table.as_of(moment).file_slices(),
    "changes": lambda table, moment: table.changes(moment),
    "changes until": lambda table, moment: table.changes("earliest", moment),
    "change images": lambda table, moment: table.changes(moment, images=True),
    "savepoint": lambda table, moment: table.savepoint(moment),
    "delete_savepoint": lambda table, moment: table.delete_savepoint(moment),
    "rollback": lambda table, moment: table.rollback(moment),
    "restore": lambda table, moment: table.restore(moment),
    "resolve": lambda table, moment: table.resolve(moment),
    "execute": lambda table, moment: table.services.execute(moment),
    "cancel": lambda table, moment: table.services.cancel(moment),
    "explain": lambda table, moment: table.explain(moment),
}


@pytest.mark.parametrize("verb", VERBS)
def test_verbs_refuse_values_that_are_no_time(tmp_path: Path, verb: str) -> None:
    table, _ = made(tmp_path)
    for moment in ("", "  ", True, 0, 1_700_000_000, 1.5, b"2026", "soon", pd.NaT):
        with pytest.raises(InvalidInputError) as caught:
            VERBS[verb](table, moment)
        assert caught.value.kind == "instant_time", moment


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (["--as-of", ""], "as.of.instant"),
        (["--since", ""], "hoodie.datasource.read.begin.instanttime"),
        (["--until", ""], "hoodie.datasource.read.end.instanttime"),
    ],
)
def test_an_empty_time_of_a_read_is_refused(tmp_path: Path, arguments: list[str], key: str) -> None:
    made(tmp_path)
    ran = CliRunner().invoke(main, ["read", str(tmp_path / "t"), *arguments])
    assert ran.exit_code != 0
    assert key in ran.output + str(ran.exception)


def test_commands_accept_times_in_the_table_s_zone(tmp_path: Path, zone: str) -> None:
    _, times = made(tmp_path, **LOCAL)
    path = str(tmp_path / "t")
    moment = f"{naive(times[1]):%Y-%m-%dT%H:%M:%S}.{times[1][14:]}"

    def run(*arguments: str) -> Any:
        ran = CliRunner().invoke(main, [*arguments], catch_exceptions=False)
        assert ran.exit_code == 0, ran.output
        return json.loads(ran.stdout)

    assert run("read", path, "--as-of", moment)["v"] == 1
    shown = run("explain", path, moment)
    assert (shown["requested_time"], shown["zone"]) == (times[1], zone)
    saved = run("savepoint", "create", path, moment)
    assert saved["requested_time"] == times[1]
    deleted = run("savepoint", "delete", path, moment, "--yes")
    assert deleted["requested_time"] == times[1]
    back = run("restore", path, moment, "--yes")
    assert back["restored_to"] == times[1]
