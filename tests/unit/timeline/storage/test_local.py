"""Guarantees of a disk: order of syncs, links, full disks, file modes."""

from __future__ import annotations

import errno
import gc
import os
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from timeline.errors import MalformedNameError, StorageCapabilityError, StorageUnavailableError
from timeline.ports.ports import AmbiguousWriteError, ObjectExistsError
from timeline.storage.folder_walker import Syscalls
from timeline.storage.local import LocalStorage
from timeline.system import _BACKGROUND_THREADS, start_in_background


class Recorder:
    """Real system calls, recorded in order."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.calls = Syscalls(
            fsync=self.fsync,
            link=self.note("link", os.link),
            rename=self.note("rename", os.rename),
        )

    def fsync(self, descriptor: int) -> None:
        folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        self.seen.append("fsync folder" if folder else "fsync file")
        os.fsync(descriptor)

    def note(self, name: str, call: Callable[..., None]) -> Callable[..., None]:
        def noted(*args: Any, **options: Any) -> None:
            self.seen.append(name)
            call(*args, **options)

        return noted


def failing(code: int) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


def files_below(folder: Path) -> list[str]:
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())


def end_of_background_work() -> None:
    """Return when all background calls have ended; their threads wait for each other here."""
    meeting = threading.Barrier(_BACKGROUND_THREADS, timeout=60)
    for each in [start_in_background(meeting.wait) for _ in range(_BACKGROUND_THREADS)]:
        each.result()


@pytest.mark.spec("LOC-1")
def test_durable_create_syncs_file_then_links_then_syncs_folder(tmp_path: Path) -> None:
    recorder = Recorder()
    storage = LocalStorage(tmp_path, calls=recorder.calls)
    storage.create("slots/1", b"x")
    recorder.seen.clear()
    storage.create("slots/2", b"x")
    assert recorder.seen == ["fsync file", "link", "fsync folder"]


def test_first_durable_create_syncs_the_names_of_its_folders(tmp_path: Path) -> None:
    recorder = Recorder()
    storage = LocalStorage(tmp_path / "t", calls=recorder.calls)
    storage.create("a/b/x", b"x")
    assert recorder.seen == ["fsync folder"] * 3 + ["fsync file", "link", "fsync folder"]


def test_folder_made_without_sync_is_synced_by_the_next_durable_create(tmp_path: Path) -> None:
    recorder = Recorder()
    storage = LocalStorage(tmp_path, calls=recorder.calls)
    storage.write("a/x", b"x")
    assert recorder.seen == ["rename"]
    storage.create("a/y", b"y")
    assert recorder.seen[1:] == ["fsync folder", "fsync file", "link", "fsync folder"]


def test_removed_and_remade_folder_is_synced_again(tmp_path: Path) -> None:
    recorder = Recorder()
    storage = LocalStorage(tmp_path, calls=recorder.calls)
    storage.create("a/x", b"x")
    storage.delete_folder("a")
    recorder.seen.clear()
    storage.create("a/x", b"x")
    assert recorder.seen == ["fsync folder", "fsync file", "link", "fsync folder"]


def test_a_folder_is_synced_although_other_threads_open_many_folders_meanwhile(
    tmp_path: Path,
) -> None:
    """A folder that leaves the cache closes its descriptor, and another file may get its number."""
    synced: list[tuple[int, int]] = []

    def fsync(descriptor: int) -> None:
        for number in range(40):  # more folders than the cache holds
            storage.stat(f"other{number}/a")
        found = os.fstat(descriptor)
        synced.append((found.st_dev, found.st_ino))

    for number in range(40):
        (tmp_path / f"other{number}").mkdir()
        (tmp_path / f"other{number}" / "a").touch()
    (tmp_path / "a").mkdir()
    storage = LocalStorage(tmp_path, calls=Syscalls(fsync=fsync))
    storage.sync_folders(["a"])
    wanted = (tmp_path / "a").stat()
    assert synced[0] == (wanted.st_dev, wanted.st_ino)


def test_relaxed_storage_never_syncs(tmp_path: Path) -> None:
    recorder = Recorder()
    storage = LocalStorage(tmp_path, durability="relaxed", calls=recorder.calls)
    storage.create("a/x", b"x")
    storage.write("a/x", b"y", durable=True)
    with storage.open_output("p/d") as file:
        file.write(b"z")
    storage.sync_folders(["p", "a"])
    assert recorder.seen == ["link", "rename"]


def test_data_file_is_synced_on_close_and_its_folders_on_demand(tmp_path: Path) -> None:
    recorder = Recorder()
    storage = LocalStorage(tmp_path, calls=recorder.calls)
    with storage.open_output("a/b/d") as file:
        file.write(b"z")
    assert recorder.seen == ["fsync file"]
    storage.sync_folders(["a/b", "a/b", "a"])
    assert recorder.seen[1:] == ["fsync folder"] * 3


def test_a_full_disk_is_reported_and_leaves_no_file(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path, calls=Syscalls(write=failing(errno.ENOSPC)))
    for put in (storage.create, storage.write):
        with pytest.raises(StorageUnavailableError, match="disk is full") as refused:
            put("a/x", b"content")
        assert refused.value.fields == {"path": "a/x", "errno": "ENOSPC"}
    assert files_below(tmp_path) == []


def test_full_disk_removes_the_data_file(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path, calls=Syscalls(write=failing(errno.ENOSPC)))
    file = storage.open_output("p/d")
    file.write(b"small enough for the buffer")
    with pytest.raises(StorageUnavailableError, match="disk is full"):
        file.close()
    assert files_below(tmp_path) == []


def test_short_writes_are_continued(tmp_path: Path) -> None:
    def write_little(descriptor: int, data: Any) -> int:
        return os.write(descriptor, bytes(data[:3]))

    storage = LocalStorage(tmp_path, calls=Syscalls(write=write_little))
    storage.create("x", b"0123456789")
    with storage.open_output("d") as file:
        file.write(b"0123456789")
    assert storage.read("x") == storage.read("d") == b"0123456789"


@pytest.mark.parametrize("code", [errno.EIO, errno.ETIMEDOUT, errno.ESTALE])
def test_lost_answer_of_a_link_is_ambiguous(tmp_path: Path, code: int) -> None:
    storage = LocalStorage(tmp_path, calls=Syscalls(link=failing(code)))
    with pytest.raises(AmbiguousWriteError):
        storage.create("x", b"content")
    assert files_below(tmp_path) == []


@pytest.mark.parametrize("code", [errno.EIO, errno.ETIMEDOUT, errno.ESTALE])
def test_lost_answer_of_an_empty_object_is_ambiguous(tmp_path: Path, code: int) -> None:
    storage = LocalStorage(tmp_path, calls=Syscalls(open_new=failing(code)))
    with pytest.raises(AmbiguousWriteError):
        storage.create("x", b"")


def test_staged_bytes_are_synced_once_and_linked_by_the_create(tmp_path: Path) -> None:
    recorder = Recorder()
    storage = LocalStorage(tmp_path, calls=recorder.calls)
    storage.create("a/known", b"makes the folder")
    recorder.seen.clear()
    with storage.stage("a/x", b"content"):
        storage.create("a/x", b"content")
    assert recorder.seen == ["fsync file", "link", "fsync folder"]
    assert storage.read("a/x") == b"content"
    assert files_below(tmp_path) == ["a/known", "a/x"]


@pytest.mark.parametrize("create", [(), (("a/x", b"other"),), (("b/x", b"content"),)])
def test_staged_bytes_without_a_create_are_deleted(
    tmp_path: Path, create: tuple[tuple[str, bytes], ...]
) -> None:
    storage = LocalStorage(tmp_path)
    with storage.stage("a/x", b"content"):
        for path, data in create:
            storage.create(path, data)
            assert storage.read(path) == data
    end_of_background_work()
    assert files_below(tmp_path) == sorted(path for path, _ in create)


def test_staging_that_fails_leaves_the_error_to_the_create(tmp_path: Path) -> None:
    failures = iter([OSError(errno.EIO, "once")])

    def fail_once(descriptor: int) -> None:
        for failure in failures:
            raise failure
        os.fsync(descriptor)

    storage = LocalStorage(tmp_path, calls=Syscalls(fsync=fail_once))
    storage.write("known", b"")
    with storage.stage("x", b"content"):
        storage.create("x", b"content")
    assert storage.read("x") == b"content"
    assert files_below(tmp_path) == ["known", "x"]


def test_staged_object_that_exists_is_refused_as_any(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.create("x", b"theirs")
    with storage.stage("x", b"mine"), pytest.raises(ObjectExistsError):
        storage.create("x", b"mine")
    assert storage.read("x") == b"theirs"
    assert files_below(tmp_path) == ["x"]


def test_folders_synced_soon_are_on_the_disk_when_waited_for(tmp_path: Path) -> None:
    recorder = Recorder()
    storage = LocalStorage(tmp_path, calls=recorder.calls)
    storage.create("a/x", b"", durable=False)
    assert recorder.seen == []
    storage.sync_soon(["a"])()
    assert recorder.seen == ["fsync folder", "fsync folder"]


def test_a_failed_deferred_folder_sync_is_reported_when_waited_for(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path, calls=Syscalls(fsync=failing(errno.EIO)))
    storage.create("a/x", b"", durable=False)
    synced = storage.sync_soon(["a"])
    with pytest.raises(StorageUnavailableError, match="making a folder durable"):
        synced()


@pytest.mark.spec("LOC-1")
@pytest.mark.parametrize("code", [errno.EIO, errno.EEXIST])
def test_link_that_was_made_despite_an_error_counts(tmp_path: Path, code: int) -> None:
    """A network file system repeats a call whose answer is lost (LOC-1)."""

    def link_and_fail(*args: Any, **options: Any) -> None:
        os.link(*args, **options)
        raise OSError(code, os.strerror(code))

    storage = LocalStorage(tmp_path, calls=Syscalls(link=link_and_fail))
    storage.create("x", b"mine")
    assert storage.read("x") == b"mine"
    assert files_below(tmp_path) == ["x"]


def test_failed_folder_sync_after_the_link_is_ambiguous(tmp_path: Path) -> None:
    def fsync_files_only(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    storage = LocalStorage(tmp_path, calls=Syscalls(fsync=fsync_files_only))
    with pytest.raises(AmbiguousWriteError):
        storage.create("x", b"")
    assert files_below(tmp_path) == ["x"]


def test_file_system_without_hard_links_is_refused(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path, calls=Syscalls(link=failing(errno.EPERM)))
    with pytest.raises(StorageCapabilityError, match="no hard links"):
        storage.create("x", b"content")


def test_folder_that_vanishes_once_is_made_again(tmp_path: Path) -> None:
    vanished: list[str] = []

    def vanish_then_link(*args: Any, **options: Any) -> None:
        if not vanished:
            vanished.append("once")
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        os.link(*args, **options)

    storage = LocalStorage(tmp_path, calls=replace(Syscalls(), link=vanish_then_link))
    storage.create("a/x", b"1")
    assert storage.read("a/x") == b"1"


def test_folder_that_keeps_vanishing_is_an_error(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path, calls=Syscalls(link=failing(errno.ENOENT)))
    with pytest.raises(StorageUnavailableError):
        storage.create("a/x", b"1")


@pytest.fixture
def trap(tmp_path: Path) -> tuple[LocalStorage, Path]:
    """Return a table with a linked folder and a linked file that lead out of it."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "secret").write_bytes(b"secret")
    table = tmp_path / "table"
    (table / "real").mkdir(parents=True)
    (table / "linked").symlink_to(victim)
    (table / "real" / "file").symlink_to(victim / "secret")
    return LocalStorage(table), victim


def test_symbolic_links_inside_a_table_are_never_followed(
    trap: tuple[LocalStorage, Path],
) -> None:
    storage, victim = trap
    attacks: list[Callable[[], object]] = [
        lambda: storage.read("linked/secret"),
        lambda: storage.read("real/file"),
        lambda: storage.stat("linked/secret"),
        lambda: storage.stat("linked"),
        lambda: storage.stat("real/file"),
        lambda: storage.list("linked"),
        lambda: storage.list("real"),
        lambda: storage.list(""),
        lambda: storage.names("linked"),
        lambda: storage.names("real"),
        lambda: storage.create("linked/new", b""),
        lambda: storage.write("linked/secret", b""),
        lambda: storage.delete("linked/secret"),
        lambda: storage.delete_folder("linked"),
        lambda: storage.open_input("real/file"),
        lambda: storage.open_output("linked/new"),
        lambda: storage.sync_folders(["linked"]),
    ]
    for attack in attacks:
        with pytest.raises(MalformedNameError) as refused:
            attack()
        assert refused.value.kind == "symlink"
    assert files_below(victim) == ["secret"]
    assert (victim / "secret").read_bytes() == b"secret"


def test_replacing_and_deleting_a_link_changes_the_link_only(
    trap: tuple[LocalStorage, Path],
) -> None:
    storage, victim = trap
    with pytest.raises(ObjectExistsError):
        storage.create("real/file", b"x")
    with pytest.raises(ObjectExistsError):
        storage.open_output("real/file")
    storage.write("real/file", b"own")
    assert storage.read("real/file") == b"own"
    assert (victim / "secret").read_bytes() == b"secret"


def test_deleting_a_folder_keeps_the_targets_of_its_links(trap: tuple[LocalStorage, Path]) -> None:
    storage, victim = trap
    (Path(storage.base_uri.removeprefix("file:")) / "real" / "inner").symlink_to(victim)
    storage.delete_folder("real")
    assert storage.stat("real") is None
    assert files_below(victim) == ["secret"]


def test_links_on_the_way_to_the_table_are_resolved_once(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "alias").symlink_to(tmp_path / "real")
    storage = LocalStorage(tmp_path / "alias" / "t")
    storage.create("x", b"")
    assert storage.base_uri == f"file:{os.path.realpath(tmp_path)}/real/t"
    assert storage.base_uri == LocalStorage(f"{tmp_path}/real/t/").base_uri


def test_planted_pipe_does_not_hang_a_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    storage = LocalStorage(tmp_path)
    with pytest.raises(MalformedNameError):
        storage.read("pipe")


def test_new_files_and_folders_are_closed_to_others(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    before = os.umask(0)
    try:
        storage.create("a/x", b"")
        storage.write("a/y", b"")
        storage.open_output("a/z").close()
        os.umask(0o077)
        storage.create("a/own", b"")
    finally:
        os.umask(before)
    modes = {each.name: oct(each.stat().st_mode & 0o777) for each in tmp_path.rglob("*")}
    assert modes == {"a": "0o750", "x": "0o640", "y": "0o640", "z": "0o640", "own": "0o600"}


def _descriptors(below: Path) -> int:
    """Return how many descriptors this process has below a folder, deleted files included."""
    kept = Path("/proc/self/fd")
    if not kept.exists():
        pytest.skip("the system has no /proc")
    gc.collect()
    found = 0
    for each in kept.iterdir():
        with suppress(FileNotFoundError):  # the listing of descriptors itself, or another test
            found += each.readlink().is_relative_to(below.resolve())
    return found


def test_no_descriptor_is_leaked(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    for number in range(20):
        storage.create(f"a/{number}", b"1", durable=False)
        storage.write("a/x", b"1")
        storage.read("a/x")
        storage.list("a")
        storage.names("a")
        storage.names("missing")
        with pytest.raises(ObjectExistsError):
            storage.create("a/x", b"2")
        storage.open_input("a/x").close()
        storage.open_output(f"d/{number}").close()
        storage.delete(f"a/{number}")
    assert _descriptors(tmp_path) == 2  # the folders a and d are open in the cache
    del storage
    assert _descriptors(tmp_path) == 0


def test_few_folders_are_kept_open(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    for number in range(100):
        storage.write(f"p{number}/x", b"1")
        assert storage.read(f"p{number}/x") == b"1"
    assert _descriptors(tmp_path) == 16


def test_kept_folder_is_not_used_once_its_path_leads_elsewhere(tmp_path: Path) -> None:
    table, elsewhere = tmp_path / "table", tmp_path / "elsewhere"
    (elsewhere / "inner").mkdir(parents=True)
    storage = LocalStorage(table)
    storage.write("a/inner/x", b"old")
    (table / "a").rename(tmp_path / "moved")
    assert storage.stat("a/inner/x") is None
    storage.write("a/inner/x", b"new")
    assert (table / "a" / "inner" / "x").read_bytes() == b"new"
    assert (tmp_path / "moved" / "inner" / "x").read_bytes() == b"old"
    (table / "a").rename(tmp_path / "moved again")
    (table / "a").symlink_to(elsewhere)
    with pytest.raises(MalformedNameError):
        storage.write("a/inner/x", b"out")
    assert list((elsewhere / "inner").iterdir()) == []


def test_names_are_those_of_now_however_often_they_were_listed(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.write("a/1", b"")
    assert storage.names("a") == ["1"]
    storage.write("a/0", b"")
    (tmp_path / "a" / "folder").mkdir()
    (tmp_path / "a" / ".x.crc").touch()
    assert storage.names("a") == ["0", "1"]
    storage.delete("a/1")
    assert storage.names("a") == ["0"]
    for number in range(200):
        (tmp_path / "a" / f"n{number:03d}").touch()
    assert storage.names("a") == ["0", *(f"n{number:03d}" for number in range(200))]
    storage.delete_folder("a")
    assert storage.names("a") == []
    storage.write("a/2", b"")
    assert storage.names("a") == ["2"]
    (tmp_path / "a" / "3").symlink_to(tmp_path / "a" / "2")
    with pytest.raises(MalformedNameError):
        storage.names("a")
