"""The command line of the lock: show it, break it, work under it."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from lockproviders.client import shared_owner_note
from lockproviders.sql.client import SqlClient, SqlSettings
from tests.acceptance.cli import run, table_with_rows
from timeline.errors import LeaseLostError, StorageUnavailableError
from timeline.system import SystemClock, SystemIds

OWNER = "there/9/w2"
HOLDER = json.dumps(
    {
        "owner": OWNER,
        "host": "there",
        "pid": 9,
        "application": "loader",
        "purpose": "publish 20260101000000000",
        "since_ms": 1_700_000_000_000,
        "nonce": "0" * 32,
    }
)


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    return table_with_rows(tmp_path_factory.mktemp("locks"))


@pytest.fixture
def props(tmp_path: Path) -> Path:
    """A SQL lock of its own for each test, whose lease is long enough for a busy machine."""
    return sql_lock(tmp_path, lease_ms=60_000)


def sql_lock(folder: Path, *, lease_ms: int) -> Path:
    file = folder / "sql.properties"
    file.write_text(
        "hoodie.write.lock.provider=sql\n"
        f"hoodoo.lock.sql.url={folder}/locks.db\n"
        "hoodoo.lock.sql.create_table=true\n"
        f"hoodoo.lock.sql.lease.ms={lease_ms}\n"
        f"hoodoo.lock.sql.timeout.ms={min(3_000, lease_ms // 6)}\n"
    )
    return file


def somebody(table: Path, props: Path, *, lease_ms: int = 60_000) -> SqlClient:
    """Another writer's client of the same lock."""
    url = props.parent / "locks.db"
    ids = SystemIds()
    settings = SqlSettings(url=str(url), create_table=True, lease_ms=lease_ms)
    return SqlClient(
        settings.database(ids), f"file:{table}", settings=settings, clock=SystemClock(), ids=ids
    )


def test_doctor_names_each_check(table: Path, tmp_path: Path) -> None:
    props = sql_lock(tmp_path, lease_ms=2_500)  # which ends in this test
    answer = run("locks", "doctor", table, "--props", props)
    assert answer.exit_code == 0, answer.out
    checks = {check["name"]: check for check in answer.document["checks"]}
    assert list(checks) == ["reach", "acquire", "contend", "release", "fence", "expire", "clock"]
    said = checks["expire"]["message"]  # when it is too early or too late it says that instead
    assert re.fullmatch(r"taken over after \d+ ms of a lease of \d+ ms", said), said


@pytest.mark.parametrize("compiled", [True, False])
def test_doctor_reports_missing_compiled_code_for_spark_processes(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, compiled: bool
) -> None:
    code = tmp_path / "code.pyc"
    if compiled:
        code.touch()
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    monkeypatch.setattr(
        "hoodoo.cli.locks.find_spec", lambda name: SimpleNamespace(name=name, cached=str(code))
    )
    answer = run("locks", "doctor", table)
    assert answer.exit_code == 0, answer.err
    assert ("PYTHONDONTWRITEBYTECODE" in answer.err) is not compiled


def test_doctor_names_the_change_that_helps_when_the_lock_is_unreachable(
    table: Path, tmp_path: Path
) -> None:
    props = tmp_path / "gone.properties"
    props.write_text(
        "hoodie.write.lock.provider=sql\nhoodoo.lock.sql.url=postgresql://u@127.0.0.1:1/locks\n"
    )
    answer = run("locks", "doctor", table, "--props", props)
    assert answer.exit_code == 5
    (reach,) = answer.document["checks"]
    assert (reach["name"], reach["ok"]) == ("reach", False)
    assert "start the server" in reach["advice"]
    assert "start the server" in run("locks", "doctor", table, "--props", props, "-o", "table").out


def test_holders_shows_owner_start_and_purpose(table: Path, props: Path) -> None:
    somebody(table, props).try_acquire(HOLDER)
    document = run("locks", "holders", table, "--props", props).document
    assert document["provider"] == "sql"
    (holder,) = document["holders"]
    assert holder["held_seconds"] > 1_000
    del holder["held_seconds"], holder["text"]
    assert holder == {
        "owner": OWNER,
        "host": "there",
        "pid": 9,
        "application": "loader",
        "purpose": "publish 20260101000000000",
        "since": "2023-11-14T22:13:20.000+00:00",
        "ours": True,
        "shared": False,
    }
    assert OWNER in run("locks", "holders", table, "--props", props, "-o", "table").out


def test_holders_shows_a_lock_shared_by_hoodoo_writers(table: Path, props: Path) -> None:
    somebody(table, props).try_acquire(shared_owner_note(HOLDER))
    (holder,) = run("locks", "holders", table, "--props", props).document["holders"]
    assert (holder["owner"], holder["shared"]) == (OWNER, True)
    shown = run("locks", "holders", table, "--props", props, "-o", "table").out
    assert "other writers of hoodoo" in " ".join(shown.split())


def test_a_holder_of_another_engine_is_shown_with_its_own_text(table: Path, props: Path) -> None:
    somebody(table, props).try_acquire("application_id=spark \x1b[31m")
    (holder,) = run("locks", "holders", table, "--props", props).document["holders"]
    assert (holder["owner"], holder["ours"]) == (None, False)
    assert holder["text"].startswith("application_id=spark")
    assert "\x1b" not in run("locks", "holders", table, "--props", props, "-o", "table").out


def test_a_free_lock_has_no_holder(table: Path) -> None:
    assert run("locks", "holders", table).document["holders"] == []


def test_audit_shows_the_recorded_leases(tmp_path: Path, props: Path) -> None:
    table = table_with_rows(tmp_path)  # no other test holds its lock
    with props.open("a") as file:
        file.write("hoodoo.lock.audit=true\n")
    done = run("locks", "run", table, "--props", props, "--purpose", "copy", "--", "true")
    assert done.exit_code == 0
    (one,) = run("locks", "audit", table, "--since", "1h").document["holdings"]
    assert (one["purpose"], one["provider"], one["ended"]) == ("copy", "sql", "released")
    assert one["since"] <= one["until"]
    assert one["held_seconds"] >= 0
    assert run("locks", "audit", table, "--until", "2020-01-01").document == {"holdings": []}
    assert "copy" in run("locks", "audit", table, "-o", "table").out
    assert run("locks", "audit", table, "--since", "lately").exit_code == 1


def test_break_frees_the_lock_and_writes_an_audit_record(table: Path, props: Path) -> None:
    client = somebody(table, props)
    holding = client.try_acquire(HOLDER)
    answer = run("locks", "break", table, "--props", props, "--owner", OWNER, "--yes")
    assert answer.exit_code == 0, answer.err
    assert (answer.document["broken"], answer.document["holder"]["owner"]) == (True, OWNER)
    assert client.holder() is None
    holdings = run("locks", "audit", table).document["holdings"]
    broken = [one for one in holdings if one["ended"] == "broken"]
    assert [one["owner"] for one in broken] == [OWNER]
    holding.release()


def test_break_reports_success_also_when_its_record_cannot_be_written(
    table: Path, props: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> str:
        raise StorageUnavailableError("no space left on device")

    monkeypatch.setattr("hoodoo.cli.locks.record_break", full)
    client = somebody(table, props)
    client.try_acquire(HOLDER)
    answer = run("locks", "break", table, "--props", props, "--owner", OWNER, "--yes")
    assert client.holder() is None
    assert (answer.exit_code, answer.document["broken"]) == (0, True)
    assert answer.document["audit"] is None
    assert "no space left on device" in answer.err


def test_break_reports_when_the_holder_will_notice(table: Path, props: Path) -> None:
    holding = somebody(table, props).try_acquire(HOLDER)
    run("locks", "break", table, "--props", props, "--owner", OWNER, "--yes")
    assert holding.is_held(), "it has not asked since"
    with pytest.raises(LeaseLostError):
        holding.renew()
    assert "next renewal" in " ".join(run("locks", "break", "--help").out.split())


def test_break_needs_confirmation(table: Path, props: Path) -> None:
    client = somebody(table, props)
    client.try_acquire(HOLDER)
    answer = run("locks", "break", table, "--props", props, "-o", "json")
    assert (answer.exit_code, answer.error["kind"]) == (1, "not_confirmed")
    assert OWNER in answer.err
    looked = run("locks", "break", table, "--props", props, "--dry-run")
    assert (looked.exit_code, looked.document["broken"]) == (0, False)
    assert client.holder() == HOLDER


def test_break_refuses_another_holder_than_the_named_one(table: Path, props: Path) -> None:
    client = somebody(table, props)
    client.try_acquire(HOLDER)
    answer = run(
        *("locks", "break", table, "--props", props, "--owner", "here/1/w1", "--yes", "-o", "json")
    )
    assert (answer.exit_code, answer.error["kind"]) == (1, "holder_changed")
    assert client.holder() == HOLDER


def test_break_of_a_free_lock_is_refused(table: Path, props: Path) -> None:
    answer = run("locks", "break", table, "--props", props, "--yes", "-o", "json")
    assert (answer.exit_code, answer.error["kind"]) == (1, "not_held")


def test_lock_of_the_kernel_cannot_be_broken(table: Path) -> None:
    answer = run("locks", "break", table, "--yes", "-o", "json")
    assert (answer.exit_code, answer.error["kind"]) == (1, "cannot_break")
    assert answer.error["message"].endswith("session or lease: the lock has no holder now")


def test_run_passes_the_exit_code(table: Path, props: Path) -> None:
    assert run("locks", "run", table, "--props", props, "--", "sh", "-c", "exit 7").exit_code == 7
    assert run("locks", "run", table, "--", "no-such-program-here").exit_code == 127


def test_run_holds_the_lock_meanwhile(table: Path, props: Path, tmp_path: Path) -> None:
    script = f"echo $HOODOO_LOCK_TOKEN > {tmp_path}/token"
    assert run("locks", "run", table, "--props", props, "--", "sh", "-c", script).exit_code == 0
    token = int((tmp_path / "token").read_text())
    assert somebody(table, props).try_acquire("next").fencing_token > token


def test_run_has_its_own_exit_code_when_the_lock_is_held(
    table: Path, props: Path, tmp_path: Path
) -> None:
    somebody(table, props).try_acquire(HOLDER)
    started = tmp_path / "started"
    answer = run("locks", "run", table, "--props", props, "--wait", 0, "--", "touch", started)
    assert answer.exit_code == 4
    assert not started.exists()
    assert OWNER in answer.err


def test_run_ends_the_command_when_the_lock_is_lost(table: Path, tmp_path: Path) -> None:
    props = sql_lock(tmp_path, lease_ms=1_500)  # which is checked again soon
    (tmp_path / "thief.py").write_text(
        "import sqlite3, time\n"
        f"thief = sqlite3.connect({str(props.parent / 'locks.db')!r}, isolation_level=None)\n"
        "thief.execute(\"UPDATE hoodoo_locks SET nonce = 'stolen', token = token + 1\")\n"
        "time.sleep(30)\n"
        f"open({str(tmp_path / 'survived')!r}, 'w')\n"
    )
    answer = run(
        *("locks", "run", table, "--props", props, "--kill-after", 1, "-o", "json"),
        *("--", sys.executable, tmp_path / "thief.py"),
    )
    assert (answer.exit_code, answer.error["kind"]) == (1, "lease_lost")
    assert not (tmp_path / "survived").exists()


def test_run_ends_child_processes_when_the_lock_is_lost(table: Path, tmp_path: Path) -> None:
    """A shell ends at once, but its child process continues the work."""
    props = sql_lock(tmp_path, lease_ms=1_500)
    (tmp_path / "thief.py").write_text(
        "import pathlib, signal, sqlite3, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"thief = sqlite3.connect({str(props.parent / 'locks.db')!r}, isolation_level=None)\n"
        "thief.execute(\"UPDATE hoodoo_locks SET nonce = 'stolen', token = token + 1\")\n"
        "for beat in range(200):\n"
        f"    pathlib.Path({str(tmp_path / 'beat')!r}).write_text(str(beat))\n"
        "    time.sleep(0.1)\n"
    )
    script = f"{sys.executable} {tmp_path / 'thief.py'} & wait"
    answer = run(
        *("locks", "run", table, "--props", props, "--kill-after", 1, "-o", "json"),
        *("--", "sh", "-c", script),
    )
    assert (answer.exit_code, answer.error["kind"]) == (1, "lease_lost")
    last = (tmp_path / "beat").read_text()
    time.sleep(0.5)
    assert (tmp_path / "beat").read_text() == last, "it works concurrently with the next holder"


def test_run_takes_the_table_from_the_properties(table: Path, props: Path) -> None:
    with props.open("a") as file:
        file.write(f"hoodie.base.path={table}\n")
    assert run("locks", "run", "--props", props, "--", "true").exit_code == 0


def test_run_without_command_or_table_is_wrong_usage(table: Path) -> None:
    assert run("locks", "run", table).exit_code == 2
    assert run("locks", "run", "--", "true").exit_code == 2
    for option in ("--wait", "--kill-after"):
        assert run("locks", "run", table, option, "nan", "--", "true").exit_code == 2


def test_options_behind_the_dashes_belong_to_the_command(table: Path, tmp_path: Path) -> None:
    script = f'echo "$1" > {tmp_path}/seen'
    done = run("locks", "run", table, "--", "sh", "-c", script, "sh", "--props")
    assert done.exit_code == 0
    assert (tmp_path / "seen").read_text() == "--props\n"
