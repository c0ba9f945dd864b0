"""The kernel's lock on a file is never stuck, and a replaced file does not deceive it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from lockproviders.filesystem import ENTRY, FlockClient
from lockproviders.hookspecs import LockContext
from timeline.errors import LeaseLostError, SettingError, UnsafeSetupError

OWNER = '{"owner":"here/41/w1","host":"here","pid":41,"purpose":"publish","nonce":"ab"}'


def client_in(folder: Path, machine, *, lease_ms: int = 0) -> FlockClient:
    return FlockClient(str(folder), clock=machine.clock, lease_ms=lease_ms)


def context(machine, table_folder: str | None, **properties: str) -> LockContext:
    return LockContext(
        properties=properties,
        table_identity="t",
        table_address="/tables/t",
        table_folder=table_folder,
        clock=machine.clock,
        ids=machine.ids,
    )


def test_the_lock_file_contains_the_owner_while_held_and_then_only_the_count(
    machine, tmp_path
) -> None:
    client = client_in(tmp_path, machine)
    holding = client.try_acquire(OWNER)
    record = json.loads((tmp_path / "hoodoo.lock").read_text())
    assert record == {**json.loads(OWNER), "token": holding.fencing_token}
    assert json.loads(client.holder()) == record
    holding.release()
    assert json.loads((tmp_path / "hoodoo.lock").read_text()) == {"token": holding.fencing_token}
    assert client.holder() is None


def test_token_counts_up_by_one(machine, tmp_path) -> None:
    (tmp_path / "hoodoo.lock").write_text('{"token":41}\n')
    client = client_in(tmp_path, machine)
    tokens = []
    for _ in range(3):
        holding = client.try_acquire(OWNER)
        tokens.append(holding.fencing_token)
        holding.release()
    assert tokens == [42, 43, 44]


@pytest.mark.parametrize("content", ["", "rubbish", '{"token":-3}', '{"token":"7"}', "[1]", "{}"])
def test_new_or_damaged_file_starts_at_the_clock(machine, tmp_path, content: str) -> None:
    (tmp_path / "hoodoo.lock").write_text(content)
    holding = client_in(tmp_path, machine).try_acquire(OWNER)
    assert holding.fencing_token == 1_700_000_001_000


def test_longer_entry_of_a_dead_holder_is_written_over(machine, tmp_path) -> None:
    (tmp_path / "hoodoo.lock").write_text('{"token":41,"owner":"' + "x" * 900 + '"}\n')
    holding = client_in(tmp_path, machine).try_acquire(OWNER)
    assert json.loads((tmp_path / "hoodoo.lock").read_text())["owner"] == "here/41/w1"
    assert holding.fencing_token == 42


def test_owner_text_too_long_for_a_page_is_shortened(machine, tmp_path) -> None:
    client_in(tmp_path, machine).try_acquire("x" * 9_000)
    assert (tmp_path / "hoodoo.lock").stat().st_size < 4_096


def test_deleted_lock_file_loses_the_lease(machine, tmp_path) -> None:
    holding = client_in(tmp_path, machine).try_acquire(OWNER)
    (tmp_path / "hoodoo.lock").unlink()
    assert not holding.is_held()
    with pytest.raises(LeaseLostError):
        holding.renew()


def test_replaced_lock_file_loses_the_lease_and_is_not_changed(machine, tmp_path) -> None:
    holding = client_in(tmp_path, machine).try_acquire(OWNER)
    (tmp_path / "other").write_text('{"token":90}\n')
    (tmp_path / "other").replace(tmp_path / "hoodoo.lock")
    assert not holding.is_held()
    holding.release()
    assert (tmp_path / "hoodoo.lock").read_text() == '{"token":90}\n'


def test_an_unreferenced_lease_frees_the_lock(machine, tmp_path) -> None:
    client = client_in(tmp_path, machine)
    holding = client.try_acquire(OWNER)
    assert client.try_acquire(OWNER) is None
    del holding
    assert client.try_acquire(OWNER) is not None


def test_the_lock_file_is_not_readable_for_others(machine, tmp_path) -> None:
    client_in(tmp_path / "new", machine).try_acquire(OWNER)
    assert (tmp_path / "new" / "hoodoo.lock").stat().st_mode & 0o007 == 0


def test_link_in_place_of_the_lock_file_is_refused(machine, tmp_path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "hoodoo.lock").symlink_to(tmp_path / "victim")
    with pytest.raises(UnsafeSetupError):
        client_in(tmp_path, machine).try_acquire(OWNER)
    assert (tmp_path / "victim").read_text() == "precious"


def test_second_name_of_another_file_is_refused(machine, tmp_path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "hoodoo.lock").hardlink_to(tmp_path / "victim")
    with pytest.raises(UnsafeSetupError):
        client_in(tmp_path, machine).try_acquire(OWNER)
    assert (tmp_path / "victim").read_text() == "precious"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_an_object_that_is_no_plain_file_is_refused(machine, tmp_path, make) -> None:
    make(tmp_path / "hoodoo.lock")
    with pytest.raises(UnsafeSetupError):
        client_in(tmp_path, machine).try_acquire(OWNER)


def test_file_in_place_of_the_folder_is_refused(machine, tmp_path) -> None:
    (tmp_path / "locks").write_text("")
    with pytest.raises(UnsafeSetupError, match=r"hoodie\.write\.lock\.filesystem\.path"):
        client_in(tmp_path / "locks", machine).try_acquire(OWNER)


def test_folder_reached_by_two_paths_is_one_lock(machine, tmp_path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    one, other = client_in(tmp_path / "real", machine), client_in(tmp_path / "link", machine)
    assert one.identity == other.identity
    holding = one.try_acquire(OWNER)
    assert other.try_acquire(OWNER) is None
    holding.release()


def test_expire_gives_the_holder_an_end_of_its_own(machine, tmp_path) -> None:
    holding = client_in(tmp_path, machine, lease_ms=60_000).try_acquire(OWNER)
    machine.clock.time_ms += 45_000
    assert holding.expires_in_ms() == 15_000
    holding.renew()
    assert holding.expires_in_ms() == 60_000


def test_forked_child_neither_holds_nor_frees_nor_prolongs_the_lock(machine, tmp_path) -> None:
    client = client_in(tmp_path, machine)
    holding = client.try_acquire(OWNER)
    child = os.fork()
    if child == 0:  # only plain system calls here: the test's process continues in the parent
        held = holding.is_held()
        holding.release()
        free = client.try_acquire(OWNER)
        os._exit(0 if not held and free is None else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert holding.is_held()


def test_the_lock_file_is_in_the_table_by_default(machine, tmp_path) -> None:
    client = ENTRY.factory(context(machine, str(tmp_path)))
    assert client.identity == f"flock:{os.path.realpath(tmp_path)}/.hoodie/.locks/hoodoo.lock"


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_path_property_moves_the_lock(machine, tmp_path, scheme: str) -> None:
    named = {"hoodie.write.lock.filesystem.path": f"{scheme}{tmp_path}/locks"}
    client = ENTRY.factory(context(machine, None, **named))
    assert client.identity == f"flock:{os.path.realpath(tmp_path)}/locks/hoodoo.lock"


@pytest.mark.parametrize("path", ["locks", "s3://bucket/locks", "file:locks"])
def test_path_that_is_not_local_and_absolute_is_refused(machine, path: str) -> None:
    with pytest.raises(SettingError):
        ENTRY.factory(context(machine, None, **{"hoodie.write.lock.filesystem.path": path}))


def test_the_name_of_javas_class_is_taken_with_a_warning(machine, tmp_path, caplog) -> None:
    provider = "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider"
    named = {"hoodie.write.lock.provider": provider}
    client = ENTRY.factory(context(machine, str(tmp_path), **named))
    assert client.identity.startswith("flock:")
    [record] = caplog.records
    assert "does not exclude even two JVMs" in record.getMessage()
    assert "set hoodie.write.lock.provider to" in record.getMessage()


def test_hoodoos_own_provider_name_needs_no_warning(machine, tmp_path, caplog) -> None:
    named = {"hoodie.write.lock.provider": "filesystem"}
    ENTRY.factory(context(machine, str(tmp_path), **named))
    assert caplog.records == []


def test_table_elsewhere_needs_the_path(machine) -> None:
    with pytest.raises(UnsafeSetupError):
        ENTRY.factory(context(machine, None))
