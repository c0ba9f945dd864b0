"""The committer of a host at its socket: permissions, refusals, and writes that commit alone."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import socket
import stat
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from filegroups.group_commit.member import Member
from filegroups.group_commit.messages import (
    MESSAGE_BYTES_MAX,
    FallBack,
    Joined,
    Message,
    Offer,
    OutcomeUnknown,
    PeerLostError,
    PeerSilentError,
    encode_message,
)
from filegroups.writing.write_request import CommitResult
from hoodoo.committer import client, sockets
from hoodoo.committer import server as service
from hoodoo.committer.server import Committer, committer_table
from hoodoo.committer.sockets import SocketChannel, SocketListener, connect
from tableservices.worker import StopFlag
from tests.acceptance.cli import run
from tests.unit.timeline.engine import Behind, Far, Heard, wait_for
from timeline.errors import InvalidInputError, SettingError, UnsafeSetupError
from timeline.model.file_names import TimestampForm, TimestampTexts
from timeline.properties.properties_file import update_properties
from timeline.system import SystemClock, ThreadExecutor, start_in_background

CLOCK = SystemClock()
LONG_MS = 60_000  # ends a test that gets no answer
OCC = {
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.write.lock.provider": "filesystem",
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
}

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Unix sockets")


def rows(number: int) -> pa.Table:
    return pa.table({"id": [f"k{number}"], "p": [f"p{number}"], "v": [number]})


def table_at(path: Path, **more: str) -> Any:
    return hoodoo.create_table(path, record_key="id", partition_by="p", properties={**OCC, **more})


def writing(path: Path, at: Path, heard: Heard, **more: str) -> Any:
    """A writer of the table that hands its writes to the committer at a socket."""
    properties = {**OCC, "hoodoo.group.commit.service": str(at), **more}
    return hoodoo.open_table(path, properties=properties, events=heard)


@contextmanager
def serving(
    path: Path,
    at: Path,
    *,
    begin: Callable[[], object] = lambda: None,
    before: Callable[[], object] = lambda: None,
    behind: Callable[[Any], Any] = lambda storage: storage,
    **more: str,
) -> Iterator[Committer]:
    """
    A committer on another thread; it does ``begin`` first, and ``before`` before each group.

    ``behind`` puts something in front of its storage.
    """
    stop = StopFlag()
    with (
        hoodoo.open_table(path, properties={**OCC, **more}) as table,
        closing(SocketListener(at, CLOCK, send_ms=5000)) as listener,
    ):
        served = replace(committer_table(table), before=before)
        ports = served.context.ports
        ports = replace(ports, storage=behind(ports.storage))
        served = replace(served, context=replace(served.context, ports=ports))
        committer = Committer(listener, [served])
        run: Future[Any] = start_in_background(lambda: (begin(), committer.run(stop)))
        try:
            yield committer
        finally:
            stop.set()
            run.result()


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> list[Offer]:
    """All writes offered so far, in the order in which they reached the committer's socket."""
    sent: list[Offer] = []
    real = SocketChannel.send

    def send(channel: SocketChannel, message: Message) -> None:
        real(channel, message)
        if isinstance(message, Offer):
            sent.append(message)

    monkeypatch.setattr(SocketChannel, "send", send)
    return sent


@pytest.mark.parametrize("far", [True, False])
def test_on_a_high_latency_store_the_next_group_begins_while_markers_of_the_last_one_are_deleted(
    tmp_path: Path, far: bool
) -> None:
    groups_at_delete: list[int] = []
    leads: list[int] = []
    deletes: list[int] = []

    class Slow(Far if far else Behind):
        def delete(self, path: str) -> None:
            if "/.heartbeat/" in path and not groups_at_delete:
                if far:
                    wait_for(lambda: committer.report.groups == 2)
                groups_at_delete.append(committer.report.groups)
                deletes.append(threading.get_ident())
            self.inner.delete(path)

    table_at(tmp_path / "t").close()
    with (
        serving(
            tmp_path / "t",
            tmp_path / "s",
            before=lambda: leads.append(threading.get_ident()),
            behind=Slow,
        ) as committer,
        writing(tmp_path / "t", tmp_path / "s", Heard()) as one,
    ):
        assert [one.insert(rows(number)).rows_inserted for number in range(2)] == [1, 1]
    assert (deletes == leads[:1]) is not far, "a near disk is quicker without another thread"
    assert groups_at_delete == [2 if far else 1]
    assert not list((tmp_path / "t/.hoodie/.heartbeat").iterdir())
    assert not list((tmp_path / "t/.hoodie/.temp").glob("*/*"))


@pytest.mark.spec("GRP-4")
def test_writers_of_a_host_share_instants(tmp_path: Path, offered: list[Offer]) -> None:
    table_at(tmp_path / "t").close()
    heard = Heard()
    with (
        serving(
            tmp_path / "t", tmp_path / "s", begin=lambda: wait_for(lambda: len(offered) == 2)
        ) as committer,
        writing(tmp_path / "t", tmp_path / "s", heard) as one,
        writing(tmp_path / "t", tmp_path / "s", heard) as two,
        ThreadExecutor(2, events=heard) as threads,
    ):

        def write(number: int) -> CommitResult:
            return (one, two)[number % 2].insert(rows(number), batch_id=f"s/{number}")

        results = threads.map(write, [0, 1])
        assert {each.group for each in results} == {2}
        assert len({each.requested_time for each in results}) == 1
        assert [each.rows_inserted for each in results] == [1, 1]
        assert one.insert(rows(7), batch_id="s/0").already_published
        with pytest.raises(InvalidInputError, match="committed as insert"):
            one.upsert(rows(7), batch_id="s/0")
        assert sorted(one.to_arrow(columns=["v"]).column("v").to_pylist()) == [0, 1]
    assert (committer.report.groups, committer.report.writes) == (1, 2)
    assert committer.report.handed_back == 2, "the batch that was committed before"
    assert not (tmp_path / "s").exists()


def test_a_committer_uses_the_stored_form_of_complex_keys(tmp_path: Path) -> None:
    kind = {"hoodie.datasource.write.keygenerator.type": "COMPLEX"}
    form = {"hoodie.write.complex.keygen.new.encoding": "false"}
    path, version = tmp_path / "t", {"hoodie.write.table.version": "8"}
    with table_at(path, **kind, **form, **version) as table:
        table.upsert(rows(1))
        storage = table.context.ports.storage
        update_properties(storage, dict.fromkeys(form), now="now")
    with serving(path, tmp_path / "s") as committer, writing(path, tmp_path / "s", Heard()) as one:
        assert one.upsert(rows(1)).rows_updated == 1
        assert one.get_rows(["id:k1"]).num_rows == 1
    assert (committer.report.writes, committer.report.handed_back) == (1, 0)


def test_a_committer_uses_the_stored_form_of_timestamp_folders(tmp_path: Path) -> None:
    path, at = tmp_path / "t", dt.datetime(2023, 3, 10, 12, 30, tzinfo=dt.UTC)
    schema = pa.schema([("id", pa.string()), ("at", pa.timestamp("us", "UTC"))])
    made = {"record_key": "id", "partition_by": "at", "properties": OCC}
    with hoodoo.create_table(path, schema=schema, **made) as table:
        table.context.timestamp_texts[""] = TimestampTexts(TimestampForm.SQL)
        table.upsert([{"id": "a", "at": at}])
    with serving(path, tmp_path / "s") as committer, writing(path, tmp_path / "s", Heard()) as one:
        assert one.upsert([{"id": "a", "at": at}]).rows_updated == 1
    assert (committer.report.writes, committer.report.handed_back) == (1, 0)


def test_a_committer_makes_no_key_of_an_incoming_type(tmp_path: Path) -> None:
    path, schema = tmp_path / "t", pa.schema([("id", pa.float64()), ("p", pa.float64())])
    made = {"record_key": "id", "partition_by": "p", "properties": OCC}
    hoodoo.create_table(path, schema=schema, **made).close()
    with serving(path, tmp_path / "s") as committer, writing(path, tmp_path / "s", Heard()) as one:
        one.upsert(pa.table({"id": [7.0], "p": [1.0]}))
        assert one.upsert(pa.table({"id": [7], "p": [1]})).rows_updated == 1
    assert (committer.report.writes, committer.report.handed_back) == (2, 0)


def test_the_first_member_of_a_group_lingers_for_others(tmp_path: Path) -> None:
    """No instant begins before: the group is validated against the snapshot of its begin."""
    table_at(tmp_path / "t").close()
    options = {"hoodoo.group.commit.linger.ms": "60000", "hoodoo.group.commit.max.writes": "2"}
    begun: list[Path] = []

    def requested() -> list[Path]:
        return list((tmp_path / "t/.hoodie/timeline").glob("*.requested"))

    with (
        serving(tmp_path / "t", tmp_path / "s", **options) as committer,
        writing(tmp_path / "t", tmp_path / "s", Heard()) as one,
        writing(tmp_path / "t", tmp_path / "s", Heard()) as two,
        ThreadExecutor(2, events=Heard()) as threads,
    ):

        def write(number: int) -> CommitResult:
            wait_for(lambda: len(committer._busy) >= number)  # the second when the first is heard
            begun.extend(requested())
            return (one, two)[number].insert(rows(number))

        assert [each.group for each in threads.map(write, [0, 1])] == [2, 2]
    assert begun == []


def test_all_waiting_writes_are_in_the_next_group(tmp_path: Path, offered: list[Offer]) -> None:
    """Connections wait as well: none is left for a later group because it was not heard yet."""
    table_at(tmp_path / "t").close()
    with (
        serving(
            tmp_path / "t", tmp_path / "s", begin=lambda: wait_for(lambda: len(offered) == 8)
        ) as committer,
        ThreadExecutor(8, events=Heard()) as threads,
    ):

        def write(number: int) -> CommitResult:
            with writing(tmp_path / "t", tmp_path / "s", Heard()) as table:
                return table.insert(rows(number))

        results = threads.map(write, list(range(8)))
    assert [each.group for each in results] == [8] * 8
    assert committer.report.groups == 1


def test_a_group_waits_for_writers_that_have_just_got_their_result(
    tmp_path: Path, offered: list[Offer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Otherwise two busy writers that pause between two writes would commit alternately, each alone.
    """
    monkeypatch.setattr(service, "PATIENCE", 0.0001)  # on any machine it is back in so long
    table_at(tmp_path / "t").close()
    groups: list[int] = []
    real = service._others

    def joined(*asked: Any) -> Any:
        found = real(*asked)
        groups.append(len(found))
        wait_for(lambda: len(offered) >= 2)
        return found

    monkeypatch.setattr(service, "_others", joined)
    with (
        serving(tmp_path / "t", tmp_path / "s") as committer,
        ThreadExecutor(2, events=Heard()) as threads,
    ):

        def write(writer: int) -> list[CommitResult]:
            with writing(tmp_path / "t", tmp_path / "s", Heard()) as table:
                wait_for(lambda: len(groups) >= writer)  # the second joins the first's group
                return [table.insert(rows(10 * writer + one)) for one in range(2 - writer)]

        [first, again], [second] = threads.map(write, [0, 1])
    assert [first.group, second.group, again.group] == [1, 2, 2]
    assert committer.report.groups == 2


def test_a_writer_refreshes_only_when_its_snapshot_is_old(tmp_path: Path) -> None:
    """
    The committer refreshes for all; on a high-latency store a refresh costs a writer two requests.
    """
    table_at(tmp_path / "t").close()
    with (
        serving(tmp_path / "t", tmp_path / "s"),
        writing(tmp_path / "t", tmp_path / "s", Heard()) as table,
    ):
        table.insert(rows(0))
        refresh = table.context.last_refresh
        for passed_ms, refreshes in ((0, False), (1_000, False), (20_000, True)):
            refresh.at_ms = CLOCK.monotonic_ms() - passed_ms
            before = refresh.at_ms
            assert table.insert(rows(passed_ms)).group == 1
            assert (refresh.at_ms > before) == refreshes


def test_the_table_of_a_committer_knows_the_slots_of_its_groups(tmp_path: Path) -> None:
    """Otherwise its services after each group would read those slots again."""
    table_at(tmp_path / "t").close()
    with (
        hoodoo.open_table(tmp_path / "t", properties=OCC) as table,
        closing(SocketListener(tmp_path / "s", CLOCK, send_ms=5000)) as listener,
    ):
        stop = StopFlag()
        run = start_in_background(lambda: Committer(listener, [committer_table(table)]).run(stop))
        with writing(tmp_path / "t", tmp_path / "s", Heard()) as writer:
            assert writer.insert(rows(0)).group == 1
        stop.set()
        assert run.result().writes == 1
        assert table.context.commit_log.known_head == 1


def test_a_connection_is_used_again_and_a_new_committer_is_found(tmp_path: Path) -> None:
    table_at(tmp_path / "t").close()
    heard = Heard()
    with writing(tmp_path / "t", tmp_path / "s", heard) as table:
        table.insert(rows(0))  # no committer listens
        assert len(heard.named("group.no_committer")) == 1
        for number in (1, 3):
            with serving(tmp_path / "t", tmp_path / "s") as committer:
                table.insert(rows(number))
                table.insert(rows(number + 1))
                assert committer.report.writes == 2
                assert len(committer._channels) == 1
        table.insert(rows(5))  # the committer stopped
        assert sorted(table.to_arrow(columns=["v"]).column("v").to_pylist()) == list(range(6))
    assert len(heard.named("group.no_committer")) == 2


def test_errors_of_a_write_are_its_own(tmp_path: Path) -> None:
    table_at(tmp_path / "t").close()
    with (
        serving(tmp_path / "t", tmp_path / "s") as committer,
        writing(tmp_path / "t", tmp_path / "s", Heard()) as table,
    ):
        table.insert(rows(1))
        with pytest.raises(InvalidInputError):
            table.insert(pa.table({"v": [1]}))
        assert table.insert_overwrite(rows(1)).group == 1
        assert committer.report.writes == 1


DIFFERENT = {
    "hoodie.parquet.compression.codec": "zstd",
    "hoodie.combine.before.insert": "true",
}


@pytest.mark.parametrize("key", DIFFERENT)
def test_a_writer_with_another_request_commits_alone(tmp_path: Path, key: str) -> None:
    table_at(tmp_path / "t").close()
    heard = Heard()
    with (
        serving(tmp_path / "t", tmp_path / "s") as committer,
        writing(tmp_path / "t", tmp_path / "s", heard, **{key: DIFFERENT[key]}) as table,
    ):
        assert table.insert(rows(1)).rows_inserted == 1
        assert committer.report.handed_back == 1
    assert "other settings" in heard.named("group.alone")[0]["why"]


def test_a_committer_of_another_release_hands_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table_at(tmp_path / "t").close()
    heard = Heard()
    monkeypatch.setattr(client, "release", lambda: "0.0")
    with (
        serving(tmp_path / "t", tmp_path / "s"),
        writing(tmp_path / "t", tmp_path / "s", heard) as table,
    ):
        assert table.insert(rows(1)).rows_inserted == 1
    assert "release" in heard.named("group.alone")[0]["why"]


def test_a_table_that_is_not_served_is_written_alone(tmp_path: Path) -> None:
    table_at(tmp_path / "t").close()
    table_at(tmp_path / "u").close()
    heard = Heard()
    with (
        serving(tmp_path / "t", tmp_path / "s"),
        writing(tmp_path / "u", tmp_path / "s", heard) as table,
    ):
        assert table.insert(rows(1)).rows_inserted == 1
    assert "does not serve" in heard.named("group.alone")[0]["why"]


@pytest.mark.spec("GRP-6")
def test_a_silent_committer_costs_its_time_out_once(tmp_path: Path) -> None:
    table_at(tmp_path / "t").close()
    heard = Heard()
    wait = {"hoodoo.group.commit.service.wait.ms": "200"}
    with (
        closing(SocketListener(tmp_path / "s", CLOCK, send_ms=1000)),
        writing(tmp_path / "t", tmp_path / "s", heard, **wait) as table,
    ):
        began = CLOCK.monotonic_ms()
        table.insert(rows(1))
        assert CLOCK.monotonic_ms() - began >= 200
        table._writer._group._rests_until_ms += 60_000  # a slow machine is no reason to ask again
        table.insert(rows(2))
        assert len(heard.named("group.committer_failed")) == 1
        assert sorted(table.to_arrow(columns=["v"]).column("v").to_pylist()) == [1, 2]


def test_a_writer_slower_than_the_patience_of_groups_fails_one_and_then_commits_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a connection that was used before: its end may also mean that the committer had ended."""
    table_at(tmp_path / "t").close()
    heard, real = Heard(), Member.answer

    def slowly(member: Member, question: Any) -> Any:
        answer = real(member, question)
        wait_for(lambda: committer.report.lost > 0)
        return answer

    with (
        serving(
            tmp_path / "t", tmp_path / "s", **{"hoodoo.group.commit.service.wait.ms": "400"}
        ) as committer,
        writing(tmp_path / "t", tmp_path / "s", heard) as table,
    ):
        table.insert(rows(0))
        monkeypatch.setattr(Member, "answer", slowly)
        result = table.insert(rows(2))
        table.insert(rows(1))  # the committer is left alone for a while
        assert (result.group, result.rows_inserted) == (1, 1)
        assert len(table.to_arrow(columns=["v"])) == 3
    assert len(heard.named("group.committer_failed")) == 1
    assert (committer.report.groups, committer.report.lost) == (1, 1)


@pytest.mark.spec("GRP-6")
@pytest.mark.parametrize("published", [True, False])
def test_a_member_of_an_interrupted_group_resolves_its_write(
    tmp_path: Path, published: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a second signal no member may write alone."""
    table_at(tmp_path / "t").close()
    heard, real = Heard(), service.commit_group

    def broken_off(*arguments: Any, **named: Any) -> Any:
        def interrupt(_: str, __: frozenset[int]) -> None:
            raise KeyboardInterrupt

        real(*arguments, *([] if published else [interrupt]), **named)
        raise KeyboardInterrupt

    monkeypatch.setattr(service, "commit_group", broken_off)
    with writing(tmp_path / "t", tmp_path / "s", heard) as table:
        results: list[CommitResult] = []

        def insert() -> None:
            with serving(tmp_path / "t", tmp_path / "s"):
                results.append(table.insert(rows(1)))

        with pytest.raises(KeyboardInterrupt):
            insert()
        [result] = results
        assert result.rows_inserted == 1
        assert len(table.to_arrow(columns=["v"])) == 1
        assert result.requested_time in [one.requested_time for one in table.timeline]
    found = "group.found" if published else "group.not_published"
    assert len(heard.named(found)) == 1


# ---- the command


def test_the_command_reports_its_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked to stop before it began, it ends in order."""
    table_at(tmp_path / "t").close()

    class Stopped(StopFlag):
        def is_set(self) -> bool:
            return True

    monkeypatch.setattr("hoodoo.cli.services.StopFlag", Stopped)
    monkeypatch.setattr("hoodoo.cli.services.signal.signal", lambda *_: None)
    arguments = [part for key, value in OCC.items() for part in ("--hoodie-conf", f"{key}={value}")]
    health, at = tmp_path / "health", tmp_path / "s"
    done = run("committer", *arguments, "--socket", at, "--health", health, tmp_path / "t")
    assert done.exit_code == 0
    options = json.loads(health.read_text())
    assert (options["state"], options["groups"], options["lost"]) == ("ended", 0, 0)
    assert not at.exists()


def test_the_command_listens_where_writers_connect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table_at(tmp_path / "t").close()
    monkeypatch.setattr("hoodoo.cli.services.signal.signal", lambda *_: None)
    done = run("committer", "--output", "json", tmp_path / "t")
    assert done.exit_code == 1
    assert done.error["kind"] == "committer_socket"
    assert "--socket" in done.error["message"]


# ---- permissions of the socket


def test_only_its_owner_may_use_the_socket(tmp_path: Path) -> None:
    at = tmp_path / "s"
    with closing(SocketListener(at, CLOCK, send_ms=1000)):
        assert stat.S_IMODE(at.lstat().st_mode) == 0o600
        at.chmod(0o660)
        with pytest.raises(UnsafeSetupError):
            connect(at, CLOCK, send_ms=1000)
    assert not at.exists()


@pytest.mark.parametrize("side", ["committer", "writer"])
def test_the_user_of_the_other_process_is_checked(
    tmp_path: Path, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(SocketListener(tmp_path / "s", CLOCK, send_ms=1000)) as listener:
        if side == "writer":
            monkeypatch.setattr(sockets, "_peer_user", lambda _: os.geteuid() + 1)
            with pytest.raises(UnsafeSetupError):
                connect(tmp_path / "s", CLOCK, send_ms=LONG_MS)
            return
        channel = connect(tmp_path / "s", CLOCK, send_ms=LONG_MS)
        assert channel is not None
        monkeypatch.setattr(sockets, "_peer_user", lambda _: os.geteuid() + 1)
        assert listener.accept() is None
        with pytest.raises(PeerLostError):
            channel.receive(LONG_MS)
        channel.close()


def test_a_plain_file_is_not_used_as_a_socket(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("precious")
    with pytest.raises(UnsafeSetupError):
        SocketListener(tmp_path / "s", CLOCK, send_ms=1000)
    with pytest.raises(UnsafeSetupError):
        connect(tmp_path / "s", CLOCK, send_ms=LONG_MS)
    assert (tmp_path / "s").read_text() == "precious"


def test_a_second_committer_is_refused_and_the_socket_of_a_dead_one_is_replaced(
    tmp_path: Path,
) -> None:
    at = tmp_path / "s"
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    dead.bind(os.fspath(at))
    dead.close()
    with closing(SocketListener(at, CLOCK, send_ms=1000)):
        with pytest.raises(UnsafeSetupError) as caught:
            SocketListener(at, CLOCK, send_ms=1000)
        assert caught.value.kind == "committer_running"
        assert at.exists()


@pytest.mark.parametrize("how", ["removed", "taken"])
def test_a_committer_that_no_writer_can_reach_ends(tmp_path: Path, how: str) -> None:
    """Two that began at once over a dead one's socket, or a tidied folder: it waited for ever."""
    at = tmp_path / "s"
    with (
        table_at(tmp_path / "t") as table,
        closing(SocketListener(at, CLOCK, send_ms=1000)) as listener,
    ):
        committer = Committer(listener, [committer_table(table)])
        at.unlink()
        if how == "taken":
            with closing(SocketListener(at, CLOCK, send_ms=1000)) as other:
                with pytest.raises(
                    UnsafeSetupError, match="writers no longer reach this committer"
                ):
                    committer.run(StopFlag())
                assert other.is_reachable()
        else:
            with pytest.raises(UnsafeSetupError, match="writers no longer reach this committer"):
                committer.run(StopFlag())


def test_a_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="short path"):
        SocketListener(tmp_path / ("s" * 120), CLOCK, send_ms=1000)


def test_a_table_cannot_choose_the_committer_of_its_writers(tmp_path: Path) -> None:
    with table_at(tmp_path / "t"):
        pass
    kept = tmp_path / "t" / ".hoodie" / "hoodie.properties"
    lines = [x for x in kept.read_text().splitlines() if "checksum" not in x]
    kept.write_text("\n".join([*lines, f"hoodoo.group.commit.service={tmp_path / 's'}", ""]))
    with (
        closing(SocketListener(tmp_path / "s", CLOCK, send_ms=1000)),
        hoodoo.open_table(tmp_path / "t", properties=OCC) as table,
    ):
        assert table.settings.group_service == str(tmp_path / "s")
        assert table._writer._group is None
        assert table.insert(rows(1)).rows_inserted == 1


# ---- messages on the socket


def pair(send_ms: int = LONG_MS) -> tuple[socket.socket, SocketChannel]:
    raw, other = socket.socketpair()
    return raw, SocketChannel(other, CLOCK, send_ms=send_ms)


def frame(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def test_a_message_in_pieces_is_put_together() -> None:
    raw, channel = pair()
    with closing(raw), closing(channel):
        data = frame(encode_message(FallBack(why="x" * 100_000))) + frame(
            encode_message(OutcomeUnknown())
        )
        raw.sendall(data[:3])
        assert channel.poll() is None
        raw.sendall(data[3:])
        assert channel.receive(LONG_MS) == FallBack(why="x" * 100_000)
        assert channel.receive(LONG_MS) == OutcomeUnknown()
        channel.send(Joined())
        assert raw.recv(1000) == frame(encode_message(Joined()))


@pytest.mark.parametrize(
    "data",
    [struct.pack(">I", 2**31), frame(b"{}"), frame(b"\x80\x04N."), frame(b""), b"GET / HTTP/1.1"],
)
def test_an_invalid_message_ends_the_connection(data: bytes) -> None:
    raw, channel = pair()
    with closing(raw), closing(channel):
        raw.sendall(data)
        with pytest.raises(PeerLostError):
            channel.receive(LONG_MS)


def test_an_offer_has_a_size_limit() -> None:
    raw, channel = pair()
    with closing(raw), closing(channel):
        raw.sendall(struct.pack(">I", MESSAGE_BYTES_MAX + 1))
        with pytest.raises(PeerLostError, match="too long"):
            channel.poll()


def test_a_silent_and_a_lost_peer_have_different_errors() -> None:
    raw, channel = pair(send_ms=50)
    with closing(channel):
        with pytest.raises(PeerSilentError):
            channel.receive(20)
        with pytest.raises(PeerSilentError):
            channel.send(FallBack(why="x" * 5_000_000))
        raw.close()
        with pytest.raises(PeerLostError) as caught:
            channel.receive(LONG_MS)
        assert not isinstance(caught.value, PeerSilentError)


def test_text_that_json_cannot_encode_is_not_sent() -> None:
    raw, channel = pair()
    with closing(raw), closing(channel), pytest.raises(PeerLostError):
        channel.send(FallBack(why="\ud800"))


@pytest.mark.parametrize(
    "data",
    [
        b"\x00",
        frame(b"{}"),
        frame(encode_message(OutcomeUnknown())),
        frame(b'{"kind":"offer","release":1}'),
    ],
)
def test_a_committer_outlives_hostile_connections(tmp_path: Path, data: bytes) -> None:
    table_at(tmp_path / "t").close()
    with (
        serving(tmp_path / "t", tmp_path / "s") as committer,
        writing(tmp_path / "t", tmp_path / "s", Heard()) as table,
    ):
        with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as raw:
            raw.connect(os.fspath(tmp_path / "s"))
            raw.sendall(data)
            table.insert(rows(1))
            assert committer.report.writes == 1
            if len(data) > 1:
                assert raw.recv(10) == b"", "it ends the connection"
        table.insert(rows(2))
        assert committer.report.writes == 2


OFFER: dict[str, Any] = {
    "release": "",
    "table_id": "",
    "operation": "insert",
    "partial": False,
    "batch_id": None,
    "plan": {},
    "avro_json": "{}",
    "schema_before": "",
    "columns": "",
    "partition_paths": (),
    "rows": b"",
}
BAD_OFFERS: dict[str, dict[str, Any]] = {
    "an operation that is none": {"operation": "drop"},
    "no plan": {"plan": {}},
    "not the Avro schema": {"avro_json": "{}"},
    "no Arrow schema": {"columns": "AAAA"},
    "no base 64": {"columns": "§"},
    "no rows": {"rows": b"rows"},
    "a path out of the table": {"partition_paths": ("../..",)},
    "a path into the table's own folder": {"partition_paths": (".hoodie",)},
}


@pytest.mark.spec("GRP-4")
@pytest.mark.parametrize("name", BAD_OFFERS)
def test_an_invalid_offer_is_handed_back(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table_at(tmp_path / "t").close()
    sent: list[Offer] = []
    send = SocketChannel.send

    def record(self: SocketChannel, message: Any) -> None:
        if isinstance(message, Offer):
            sent.append(message)
        send(self, message)

    monkeypatch.setattr(SocketChannel, "send", record)
    with serving(tmp_path / "t", tmp_path / "s") as committer:
        with writing(tmp_path / "t", tmp_path / "s", Heard()) as table:
            table.insert(rows(1))
        good = {key: getattr(sent[0], key) for key in OFFER}
        channel = connect(tmp_path / "s", CLOCK, send_ms=LONG_MS)
        assert channel is not None
        with closing(channel):
            channel.send(Offer(**{**good, **BAD_OFFERS[name]}))
            assert isinstance(channel.receive(LONG_MS), FallBack)
        assert committer.report.handed_back == 1
        assert committer.report.failures == 0


def test_a_table_of_a_single_writer_has_no_committer(tmp_path: Path) -> None:
    hoodoo.create_table(tmp_path / "t", record_key="id", partition_by="p").close()
    with hoodoo.open_table(tmp_path / "t") as table, pytest.raises(UnsafeSetupError) as caught:
        committer_table(table)
    assert caught.value.kind == "committer_single_writer"


def test_too_many_connections_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_CONNECTIONS_MAX", 1)
    table_at(tmp_path / "t").close()
    with (
        serving(tmp_path / "t", tmp_path / "s") as committer,
        writing(tmp_path / "t", tmp_path / "s", Heard()) as one,
        writing(tmp_path / "t", tmp_path / "s", Heard()) as two,
    ):
        one.insert(rows(1))
        two.insert(rows(2))
        assert committer.report.writes == 1
        assert sorted(one.to_arrow(columns=["v"]).column("v").to_pylist()) == [1, 2]


@pytest.mark.spec("GRP-4")
def test_a_copy_of_the_table_is_not_the_table(tmp_path: Path) -> None:
    """It has the same identity; its rows must not be committed to the table that is served."""
    with table_at(tmp_path / "t") as table:
        table.insert(rows(1))
    shutil.copytree(tmp_path / "t", tmp_path / "copy")
    with serving(tmp_path / "t", tmp_path / "s") as committer:
        with writing(tmp_path / "copy", tmp_path / "s", Heard()) as copy:
            copy.insert(rows(2))
            assert copy.to_arrow(columns=["v"]).num_rows == 2
        assert (committer.report.handed_back, committer.report.writes) == (1, 0)
    with hoodoo.open_table(tmp_path / "t") as table:
        assert table.to_arrow(columns=["v"]).num_rows == 1


@pytest.mark.spec("GRP-4")
def test_a_writer_with_another_conflict_strategy_commits_by_itself(tmp_path: Path) -> None:
    table_at(tmp_path / "t").close()
    how = {"hoodie.write.lock.conflict.resolution.strategy": "partition"}
    with serving(tmp_path / "t", tmp_path / "s") as committer:
        with writing(tmp_path / "t", tmp_path / "s", Heard(), **how) as table:
            table.insert(rows(1))
        assert (committer.report.handed_back, committer.report.writes) == (1, 0)


@pytest.mark.spec("GRP-4")
def test_rows_that_fit_the_schema_committed_since_the_last_refresh_are_accepted(
    tmp_path: Path,
) -> None:
    table_at(tmp_path / "t").close()
    with (
        serving(tmp_path / "t", tmp_path / "s"),
        writing(tmp_path / "t", tmp_path / "s", Heard()) as table,
    ):
        table.insert(rows(1))
        assert table.delete(rows(1).select(["id", "p"])).rows_deleted == 1
