"""
The tests that every adapter of the storage port must pass.

The test file of an adapter subclasses ``StorageSuite``, and its ``make_storage`` returns the
storage of an empty table. Pytest reports the tests of capabilities that the adapter does not claim
as skipped.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from timeline.errors import MalformedNameError
from timeline.ports.ports import ObjectExistsError, ObjectMissingError, Storage
from timeline.storage.non_atomic import PROBE_FOLDER, prove_atomic_create
from timeline.system import SystemClock, SystemIds

Answer = TypeVar("Answer")

_RACERS = 4
_RACES = 40
_HOSTILE = ("../x", "a/../../x", "/etc/x", "a//b", "./a", "a/.", "a\x00b", "a\\b", "a\nb", "")
_LEFTOVERS = (
    ".x.crc",
    "x.crc",
    ".tmp-0123456789abcdef0123456789abcdef",
    "20260101000000000.commit.0a1b2c3d-4e5f-4a6b-8c9d-0e1f2a3b4c5d",
)


class StorageSuite:
    """
    The suite; subclass it with a name that starts with ``Test`` and override ``make_storage``.

    The name of the subclass's file shows the adapter under test.

    Attributes:
        stamp_ms: The resolution of the store's timestamps. A rewrite with equal bytes within this
            time may keep its version (object stores name a version by its content).
    """

    stamp_ms: ClassVar[int] = 0

    def make_storage(self) -> Storage:
        """Return the storage of an empty table, a new one for each call; override it."""
        raise NotImplementedError("say how the storage under test is made")

    @pytest.fixture
    def storage(self) -> Storage:
        """Return the storage under test."""
        return self.make_storage()

    # ------------------------------------------------------------ create

    def test_created_object_is_read_back(self, storage: Storage) -> None:
        """A create is visible to the next read, and creates the parent folders."""
        storage.create("a/b/c", b"content")
        assert storage.read("a/b/c") == b"content"

    def test_create_refuses_a_taken_name_and_keeps_its_bytes(self, storage: Storage) -> None:
        """A refused create changes nothing."""
        storage.create("a/x", b"first")
        with pytest.raises(ObjectExistsError) as refused:
            storage.create("a/x", b"second")
        assert refused.value.args == ("a/x",)
        assert storage.read("a/x") == b"first"

    def test_create_works_without_durability_too(self, storage: Storage) -> None:
        """Without durability a create only skips the wait for the disk."""
        storage.create("a/x", b"1", durable=False)
        with pytest.raises(ObjectExistsError):
            storage.create("a/x", b"2", durable=False)

    def test_name_is_free_again_after_delete(self, storage: Storage) -> None:
        """A create needs only that the name is absent."""
        storage.create("x", b"1")
        storage.delete("x")
        storage.create("x", b"2")
        assert storage.read("x") == b"2"

    def test_empty_object_exists(self, storage: Storage) -> None:
        """Java's requested and inflight instants are empty."""
        storage.create("a/empty", b"")
        found = storage.stat("a/empty")
        assert storage.read("a/empty") == b""
        assert found is not None
        assert found.size_bytes == 0
        with storage.open_input("a/empty") as file:
            assert file.read() == b""

    def test_racing_creates_have_exactly_one_winner(self, storage: Storage) -> None:
        """Several threads create the same name with different bytes, many times (SLOT-1)."""
        if not storage.capabilities.atomic_create:
            pytest.skip("the adapter does not claim atomic creation")
        for race in range(_RACES):
            path = f"race/{race:04}"

            def enter(racer: int, path: str = path) -> int | None:
                try:
                    storage.create(path, b"%d" % racer * 3000, durable=False)
                except ObjectExistsError:
                    return None
                return racer

            winners = [racer for racer in _together(enter) if racer is not None]
            assert len(winners) == 1
            assert storage.read(path) == b"%d" % winners[0] * 3000

    def test_losers_see_the_whole_object_at_once(self, storage: Storage) -> None:
        """A client whose create finds the name taken can read the whole object (LOC-1)."""
        content = b"y" * 200_000
        for race in range(_RACES):
            path = f"whole/{race:04}"

            def enter(_: int, path: str = path) -> int:
                with contextlib.suppress(ObjectExistsError):
                    storage.create(path, content, durable=False)
                return len(storage.read(path))

            assert _together(enter) == [len(content)] * _RACERS

    def test_probe_proves_the_claim(self, storage: Storage) -> None:
        """The probe passes and deletes its objects (CAP-1)."""
        if not storage.capabilities.atomic_create:
            pytest.skip("the adapter does not claim atomic creation")
        prove_atomic_create(storage, SystemIds())
        assert storage.names(PROBE_FOLDER) == []

    # ------------------------------------------------------------ write

    def test_write_creates_and_replaces(self, storage: Storage) -> None:
        """The new content may be shorter or longer."""
        for content in (b"first", b"", b"a longer content", b"x"):
            storage.write("a/heartbeat", content)
            assert storage.read("a/heartbeat") == content

    def test_durable_write_replaces(self, storage: Storage) -> None:
        """A write that waits for the disk replaces the content, too."""
        storage.write("a/x", b"1", durable=True)
        storage.write("a/x", b"2", durable=True)
        assert storage.read("a/x") == b"2"

    def test_readers_see_old_or_new_bytes_never_a_mix(self, storage: Storage) -> None:
        """One thread replaces the object while others read it."""
        contents = {b"a" * 100_000, b"b" * 50_000}
        storage.write("x", b"a" * 100_000)

        def act(racer: int) -> bool:
            if racer == 0:
                for _ in range(_RACES):
                    for content in sorted(contents):
                        storage.write("x", content)
                return True
            return all(storage.read("x") in contents for _ in range(_RACES))

        assert all(_together(act))

    def test_version_changes_with_every_rewrite(self, storage: Storage) -> None:
        """This holds also for equal size and content."""
        versions = []
        for _ in range(3 if self.stamp_ms else 5):
            storage.write("x", b"same")
            found = storage.stat("x")
            assert found is not None
            versions.append(found.version)
            SystemClock().sleep_ms(self.stamp_ms)
        assert len(set(versions)) == len(versions)

    def test_rewriting_removes_the_checksum_sibling(self, storage: Storage) -> None:
        """Java refuses content that does not fit an old checksum file (LOC-3)."""
        storage.write("f/.hoodie.properties.crc", b"crc")
        storage.write("f/hoodie.properties", b"new")
        storage.write("f/.new.crc", b"crc")
        storage.create("f/new", b"")
        storage.write("f/.gone.crc", b"crc")
        storage.delete("f/gone")
        for stale in ("f/.hoodie.properties.crc", "f/.new.crc", "f/.gone.crc"):
            assert storage.stat(stale) is None

    # ------------------------------------------------------------ look-ups and listings

    def test_reading_what_is_absent_is_a_typed_error(self, storage: Storage) -> None:
        """The path is a missing name, in a missing folder, a folder, or below a file."""
        storage.create("folder/file", b"")
        for path in ("missing", "no/folder/x", "folder", "folder/file/x"):
            with pytest.raises(ObjectMissingError) as missing:
                storage.read(path)
            assert missing.value.args == (path,)
            with pytest.raises(ObjectMissingError):
                storage.open_input(path)

    def test_stat_distinguishes_files_folders_and_absence(self, storage: Storage) -> None:
        """Stat returns the kind and the size, or None."""
        storage.create("a/x", b"12345")
        file, folder = storage.stat("a/x"), storage.stat("a")
        assert file is not None
        assert folder is not None
        assert (file.name, file.is_folder, file.size_bytes) == ("x", False, 5)
        assert (folder.name, folder.is_folder) == ("a", True)
        assert storage.stat("a/y") is None
        assert storage.stat("b/y") is None

    def test_stat_of_the_base_folder(self, storage: Storage) -> None:
        """The empty path names the base folder."""
        storage.create("x", b"")
        found = storage.stat("")
        assert found is not None
        assert found.is_folder

    def test_modification_time_comes_from_the_storage_clock(self, storage: Storage) -> None:
        """The tolerance of 100 ms covers the resolution of file system timestamps."""
        before = storage.now_ms()
        storage.create("x", b"")
        found = storage.stat("x")
        assert found is not None
        assert before - 100 <= found.modified_ms <= storage.now_ms() + 100

    def test_list_shows_direct_children_sorted(self, storage: Storage) -> None:
        """A list has files and folders, but no deeper entries."""
        for path in ("t/b", "t/a/deep/x", "t/C", "t/a-file", "u/z"):
            storage.create(path, b"1")
        listed = [(entry.name, entry.is_folder, entry.size_bytes) for entry in storage.list("t")]
        assert listed == [("C", False, 1), ("a", True, 0), ("a-file", False, 1), ("b", False, 1)]
        assert [entry.name for entry in storage.list("")] == ["t", "u"]

    def test_names_shows_files_only_sorted(self, storage: Storage) -> None:
        """The timeline is listed this way."""
        for path in ("t/b", "t/a/x", "t/C", "t/_"):
            storage.create(path, b"")
        assert storage.names("t") == ["C", "_", "b"]

    def test_missing_folder_lists_as_empty(self, storage: Storage) -> None:
        """Object stores have no folders, so a missing one is no error."""
        storage.create("x", b"")
        for folder in ("missing", "missing/too", "x"):
            assert storage.list(folder) == []
            assert storage.names(folder) == []

    def test_new_table_lists_as_empty(self, storage: Storage) -> None:
        """This holds before the first write."""
        assert storage.list("") == []
        assert storage.names("") == []

    def test_leftovers_are_never_listed(self, storage: Storage) -> None:
        """These are checksum files and temporary files of hoodoo and of Java (LOC-3)."""
        for name in _LEFTOVERS:
            storage.write(f"t/{name}", b"1")
        storage.write("t/20260101000000000.commit", b"1")
        storage.write("t/fine.crc/x", b"1")  # a folder may be called so
        assert storage.names("t") == ["20260101000000000.commit"]
        assert [entry.name for entry in storage.list("t")] == [
            "20260101000000000.commit",
            "fine.crc",
        ]

    def test_listing_shows_a_file_right_after_its_creation(self, storage: Storage) -> None:
        """A deleted file is missing in the next list."""
        for number in range(20):
            storage.create(f"t/{number:02}", b"", durable=False)
            assert len(storage.names("t")) == number + 1
        storage.delete("t/07")
        assert "07" not in storage.names("t")

    def test_listing_while_writing_shows_final_names_only(self, storage: Storage) -> None:
        """A list never has a temporary name."""

        def act(racer: int) -> bool:
            if racer == 0:
                for number in range(_RACES):
                    storage.create(f"t/n{number:03}", b"x", durable=False)
                return True
            seen: set[str] = set()
            for _ in range(_RACES):
                seen.update(entry.name for entry in storage.list("t"))
                seen.update(storage.names("t"))
            return all(name.startswith("n") for name in seen)

        assert all(_together(act))

    # ------------------------------------------------------------ delete

    def test_deleting_twice_is_no_error(self, storage: Storage) -> None:
        """A delete below a missing folder is no error, either."""
        storage.create("a/x", b"")
        storage.delete("a/x")
        storage.delete("a/x")
        storage.delete("no/folder/x")
        assert storage.stat("a/x") is None

    def test_delete_folder_removes_everything_below(self, storage: Storage) -> None:
        """It deletes no folder whose name only starts with the same text."""
        for path in ("m/one/a", "m/one/deep/b", "m/one/.a.crc", "m/one2/c"):
            storage.write(path, b"")
        storage.delete_folder("m/one")
        storage.delete_folder("m/one")
        assert [entry.name for entry in storage.list("m")] == ["one2"]
        storage.create("m/one/a", b"again")
        assert storage.read("m/one/a") == b"again"

    # ------------------------------------------------------------ data files

    def test_data_file_is_written_and_read_by_arrow(self, storage: Storage) -> None:
        """The engine writes and reads data files this way."""
        table = pa.table({"key": ["a", "b"], "value": [1, 2]})
        with (
            storage.open_output("p=1/data.parquet") as file,
            pq.ParquetWriter(file, table.schema) as writer,
        ):
            writer.write_table(table)
        storage.sync_folders(["p=1"])
        with storage.open_input("p=1/data.parquet") as file:
            assert pq.read_table(file).equals(table)

    def test_data_file_never_takes_a_used_name(self, storage: Storage) -> None:
        """This holds for the name of a finished file and of one in writing."""
        storage.create("p/x", b"old")
        with pytest.raises(ObjectExistsError), storage.open_output("p/x") as file:
            file.write(b"new")
        with storage.open_output("p/y") as file:
            with pytest.raises(ObjectExistsError):
                storage.open_output("p/y")
            file.write(b"whole")
        assert storage.read("p/x") == b"old"
        assert storage.read("p/y") == b"whole"

    def test_unfinished_data_file_is_removed(self, storage: Storage) -> None:
        """An exception in the block removes the file, and reaches the caller."""

        def fail() -> None:
            with storage.open_output("p/x") as file:
                file.write(b"half" * 1000)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert storage.stat("p/x") is None

    def test_data_file_reports_its_position(self, storage: Storage) -> None:
        """Row group offsets depend on ``tell``."""
        with storage.open_output("p/x") as file:
            file.write(b"abc")
            assert file.tell() == 3
            file.write(b"d" * (3 << 20))
            assert file.tell() == 3 + (3 << 20)
        found = storage.stat("p/x")
        assert found is not None
        assert found.size_bytes == 3 + (3 << 20)

    def test_input_seeks_and_reads_parts(self, storage: Storage) -> None:
        """A Parquet reader reads the footer first."""
        storage.create("x", b"0123456789")
        with storage.open_input("x") as file:
            file.seek(-3, 2)
            assert file.read() == b"789"
            file.seek(2)
            assert file.read(3) == b"234"
            assert file.tell() == 5

    def test_sync_of_a_missing_folder_is_no_error(self, storage: Storage) -> None:
        """A partition is missing if its only file was discarded."""
        storage.sync_folders(["never/made", ""])

    # ------------------------------------------------------------ names and addresses

    def test_names_of_all_alphabets_survive(self, storage: Storage) -> None:
        """Partition values become folder names."""
        for path in ("stadt=Köln/x", "城市=東京/x", "a b=c%2Fd/x", "k=a:b+c@d/x", "emoji=🛫/x"):
            storage.create(path, path.encode())
            assert storage.read(path) == path.encode()
        assert [entry.name for entry in storage.list("")] == sorted(
            ["stadt=Köln", "城市=東京", "a b=c%2Fd", "k=a:b+c@d", "emoji=🛫"]
        )

    @pytest.mark.parametrize("path", _HOSTILE)
    def test_paths_that_leave_the_table_are_refused(self, storage: Storage, path: str) -> None:
        """Every method that takes a path refuses these (SEC1)."""
        calls: list[Callable[[], object]] = [
            lambda: storage.read(path),
            lambda: storage.create(path, b""),
            lambda: storage.write(path, b""),
            lambda: storage.delete(path),
            lambda: storage.delete_folder(path),
            lambda: storage.open_input(path),
            lambda: storage.open_output(path),
        ]
        if path:
            calls += [
                lambda: storage.stat(path),
                lambda: storage.list(path),
                lambda: storage.names(path),
                lambda: storage.locate(path),
                lambda: storage.sync_folders([path]),
            ]
        for call in calls:
            with pytest.raises(MalformedNameError):
                call()

    def test_addresses_are_the_base_address_and_the_path(self, storage: Storage) -> None:
        """The base address has no trailing slash."""
        assert not storage.base_uri.endswith("/")
        assert storage.locate("p=1/x") == f"{storage.base_uri}/p=1/x"
        assert storage.locate("") == storage.base_uri


def _together(act: Callable[[int], Answer]) -> list[Answer]:
    """Run ``act`` in several threads that start at the same time; return the results."""
    start = threading.Barrier(_RACERS)

    def begin(racer: int) -> Answer:
        start.wait(timeout=120)
        return act(racer)

    with ThreadPoolExecutor(_RACERS) as pool:
        return list(pool.map(begin, range(_RACERS)))
