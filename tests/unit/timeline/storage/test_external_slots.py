"""A store without an atomic create, and the decisions of its slot store (SLOT-6, CAP-1)."""

from __future__ import annotations

from dataclasses import replace
from typing import IO

import pytest

from filegroups.schema.new_table import new_table_properties
from tests.unit.timeline.memory import MemoryStorage
from tests.unit.timeline.recording import RecordingStorage
from timeline.errors import (
    InvalidInputError,
    StorageUnavailableError,
    TableReplacedError,
    UnsafeSetupError,
)
from timeline.model.file_names import PROPERTIES, SLOTS, TABLE_DESCRIPTOR, slot_path
from timeline.ports.ports import (
    ObjectExistsError,
    ObjectMissingError,
    StorageCapabilities,
)
from timeline.properties.properties_file import (
    TableDescriptor,
    create_properties,
    decode_table_descriptor,
    encode_table_descriptor,
    load_config,
)
from timeline.storage.external_slots import ExternalSlotStorage
from timeline.storage.non_atomic import prove_atomic_create
from timeline.system import SystemIds
from timeline.testing.storage_suite import StorageSuite

REQUESTED = ".hoodie/timeline/20260101000000000.commit.requested"
NOW = "Thu Nov 26 12:00:00 UTC 2026"
NEW = new_table_properties(
    "t",
    record_key_fields=("id",),
    partition_fields=(),
)
MANIFEST = ".hoodie/timeline/history/manifest_2"


class Overwrites(MemoryStorage):
    """A store without an atomic create that must not receive one."""

    @property
    def capabilities(self) -> StorageCapabilities:
        return replace(super().capabilities, atomic_create=False)

    _opens = False

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        assert self._opens, f"asked to create {path}"
        super().create(path, data, durable=durable)

    def open_output(self, path: str) -> IO[bytes]:
        self._opens = True
        try:
            return super().open_output(path)
        finally:
            self._opens = False


class Slots(MemoryStorage):
    """A slot store in memory."""

    def close(self) -> None:
        """No resource is open."""


class SharedTable:
    """The folder of one table and one slot store, opened by several processes."""

    def __init__(self) -> None:
        self.folder = Overwrites()
        self.slots = Slots()

    def open(self, *, key: str = "t", where: str = "sql:db#slots") -> ExternalSlotStorage:
        return ExternalSlotStorage(self.folder, self.slots, where=where, key=key, ids=SystemIds())


@pytest.fixture
def shared() -> SharedTable:
    return SharedTable()


class TestDecidedStorage(StorageSuite):
    """For other names the storage behaves like the inner one."""

    def make_storage(self) -> ExternalSlotStorage:
        return SharedTable().open()

    test_racing_creates_have_exactly_one_winner = None  # of names that a slot decides


@pytest.mark.spec("SLOT-6")
def test_slots_are_never_written_to_the_storage(shared: SharedTable) -> None:
    one, other = shared.open(), shared.open()
    one.create(slot_path(1), b"first")
    with pytest.raises(ObjectExistsError):
        other.create(slot_path(1), b"second")
    assert other.read(slot_path(1)) == b"first"
    assert other.names(SLOTS) == [f"{1:020d}"]
    assert shared.folder.names(SLOTS) == []
    other.delete(slot_path(1))
    assert one.names(SLOTS) == []
    with pytest.raises(ObjectMissingError):
        one.read(slot_path(1))


def test_a_requested_time_has_one_owner(shared: SharedTable) -> None:
    """TL-REQ-1, without a conditional write of the storage."""
    one, other = shared.open(), shared.open()
    one.create(REQUESTED, b"")
    with pytest.raises(ObjectExistsError):
        other.create(REQUESTED, b"")
    one.delete(REQUESTED)
    other.create(REQUESTED, b"")


def test_a_name_that_another_engine_took_is_taken(shared: SharedTable) -> None:
    """It does not use the slot store; its entry blocks no writer."""
    shared.folder.write(REQUESTED, b"")
    with pytest.raises(ObjectExistsError):
        shared.open().create(REQUESTED, b"")
    shared.folder.delete(REQUESTED)
    shared.open().create(REQUESTED, b"")


def test_a_reserved_name_whose_owner_died_is_written_by_the_next_writer(
    shared: SharedTable,
) -> None:
    """Without this the number would stay reserved without an object."""
    owner = shared.open()

    def dies(path: str, data: bytes, *, durable: bool = False) -> None:
        if path == MANIFEST:
            raise StorageUnavailableError("gone")
        MemoryStorage.write(shared.folder, path, data, durable=durable)

    shared.folder.write = dies
    with pytest.raises(StorageUnavailableError):
        owner.create(MANIFEST, b"owner's")
    del shared.folder.write
    with pytest.raises(ObjectExistsError):
        shared.open().create(MANIFEST, b"another's")
    assert shared.folder.read(MANIFEST) == b"owner's"


def test_a_completed_file_is_written_without_the_slot_store(shared: SharedTable) -> None:
    shared.open().create(
        TABLE_DESCRIPTOR, encode_table_descriptor(TableDescriptor(table_id="a", slots="s"))
    )
    calls = RecordingStorage(shared.slots)
    shared.slots = calls  # type: ignore[assignment]
    shared.open().create(".hoodie/timeline/1_2.commit", b"body")
    assert calls.calls == []


def test_long_slots_leave_their_bytes_on_the_storage(shared: SharedTable) -> None:
    """DynamoDB limits a row to 400 KiB. The loser deletes its bytes; the winner keeps them."""
    one, other = shared.open(), shared.open()
    long, longer = b"a" * 300_000, b"b" * 300_001
    one.create(slot_path(1), long)
    with pytest.raises(ObjectExistsError):
        other.create(slot_path(1), longer)
    with pytest.raises(ObjectExistsError):
        one.create(slot_path(1), long)  # the second request of one client (UNK-1)
    assert other.read(slot_path(1)) == long
    assert len(shared.folder.names(".hoodie/.hoodoo/bodies")) == 1
    other.delete(slot_path(1))
    assert shared.folder.names(".hoodie/.hoodoo/bodies") == []


def test_the_age_of_a_slot_starts_at_its_first_stat(shared: SharedTable) -> None:
    """Only the clock of the storage counts, so no two clocks are compared."""
    storage = shared.open()
    storage.create(slot_path(1), b"1234")
    first = storage.stat(slot_path(1))
    again = shared.open().stat(slot_path(1))
    assert first is not None
    assert again is not None
    assert first.size_bytes == again.size_bytes == 4
    assert first.modified_ms == again.modified_ms
    assert storage.stat(slot_path(2)) is None
    storage.delete(slot_path(1))
    assert shared.folder.names(".hoodie/.hoodoo/slots_seen") == []


# ------------------------------------------------------------------ identity


def test_concurrent_first_writers_create_one_table_id(shared: SharedTable) -> None:
    """The second writer uses the table id of the first, even before its file exists."""
    one, other = shared.open(), shared.open()
    one.create(slot_path(1), b"1")
    identity = decode_table_descriptor(shared.folder.read(TABLE_DESCRIPTOR))
    assert identity.slots == "sql:db#slots#t"
    with pytest.raises(ObjectExistsError):
        other.create(
            TABLE_DESCRIPTOR, encode_table_descriptor(TableDescriptor(table_id="mine", slots="s"))
        )
    assert decode_table_descriptor(shared.folder.read(TABLE_DESCRIPTOR)) == identity


def test_a_table_id_whose_creator_died_is_the_tables(shared: SharedTable) -> None:
    born = encode_table_descriptor(TableDescriptor(table_id="first", slots="sql:db#slots#t"))
    shared.slots.create("born/t/000001", born)
    shared.open().create(slot_path(1), b"1")
    assert decode_table_descriptor(shared.folder.read(TABLE_DESCRIPTOR)).table_id == "first"


def test_a_table_created_after_a_drop_starts_with_an_empty_commit_log(shared: SharedTable) -> None:
    """F27: the new table never reads rows of the old one, and old handles detect the drop."""
    old = shared.open()
    old.create(PROPERTIES, b"old")
    old.create(slot_path(1), b"old")
    shared.folder.delete_folder(".hoodie")
    new = shared.open()
    new.create(PROPERTIES, b"new")
    assert shared.folder.read(PROPERTIES) == b"new"
    assert new.names(SLOTS) == []
    new.create(slot_path(1), b"new")
    with pytest.raises(TableReplacedError, match="dropped and created again"):
        old.create(slot_path(2), b"old")


def test_a_table_is_made_once(shared: SharedTable) -> None:
    shared.open().create(PROPERTIES, b"one")
    with pytest.raises(ObjectExistsError):
        shared.open().create(PROPERTIES, b"other")
    assert shared.folder.read(PROPERTIES) == b"one"


def dies_behind(shared: SharedTable, last: str) -> None:
    """Let the creator of a table die once the storage has this file."""

    def write(path: str, data: bytes, *, durable: bool = False) -> None:
        MemoryStorage.write(shared.folder, path, data, durable=durable)
        if path == last:
            shared.slots.create = gone  # type: ignore[method-assign]

    def gone(path: str, data: bytes, *, durable: bool = True) -> None:
        raise StorageUnavailableError("gone")

    shared.folder.write = write  # type: ignore[method-assign]
    with pytest.raises(StorageUnavailableError):
        create_properties(shared.open(), NEW, now=NOW)
    del shared.folder.write, shared.slots.create


def dies_before(shared: SharedTable, last: str) -> None:
    """Let the creator of a table die after it reserves this file and before it writes it."""

    def write(path: str, data: bytes, *, durable: bool = False) -> None:
        if path == last:
            raise StorageUnavailableError("gone")
        MemoryStorage.write(shared.folder, path, data, durable=durable)

    shared.folder.write = write  # type: ignore[method-assign]
    with pytest.raises(StorageUnavailableError):
        create_properties(shared.open(), NEW, now=NOW)
    del shared.folder.write


def test_a_table_whose_creator_died_after_the_table_id_is_created_by_the_next(
    shared: SharedTable,
) -> None:
    """The table has no data yet, so other properties cannot change its meaning."""
    dies_behind(shared, TABLE_DESCRIPTOR)
    create_properties(shared.open(), NEW, now=NOW)
    assert load_config(shared.open()).raw["hoodie.table.name"] == "t"


def test_a_table_whose_creator_died_before_its_properties_exists(shared: SharedTable) -> None:
    """The reservation holds the properties, so the next writer writes them."""
    dies_before(shared, PROPERTIES)
    with pytest.raises(InvalidInputError) as refused:
        create_properties(shared.open(), NEW, now=NOW)
    assert refused.value.kind == "table_exists"
    assert load_config(shared.open()).raw["hoodie.table.name"] == "t"


def test_two_tables_with_one_key_have_different_table_ids(shared: SharedTable) -> None:
    """Two hosts have a table at the same local path and share one database."""
    shared.open().create(REQUESTED, b"")
    other = SharedTable()
    other.slots = shared.slots
    other.open().create(REQUESTED, b"")
    mine, theirs = (
        decode_table_descriptor(one.folder.read(TABLE_DESCRIPTOR)) for one in (shared, other)
    )
    assert mine.table_id != theirs.table_id


def test_an_emptied_slot_store_is_refused(shared: SharedTable) -> None:
    """Without this check every number could be taken a second time."""
    shared.open().create(slot_path(1), b"1")
    shared.slots = Slots()
    with pytest.raises(UnsafeSetupError) as refused:
        shared.open().create(slot_path(1), b"again")
    assert refused.value.kind == "slots_lost"


@pytest.mark.spec("CAP-1")
def test_the_probe_proves_the_slot_store(shared: SharedTable) -> None:
    """CAP-1: a store without guarantees passes; a slot store with false guarantees fails."""
    prove_atomic_create(shared.open(), SystemIds())
    assert shared.folder.names(".hoodie/.hoodoo/probe") == []
