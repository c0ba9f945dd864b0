"""The table's properties survive a crash at each step of a change (fmt 1.1 to 1.3)."""

from __future__ import annotations

import pytest

from filegroups.schema.new_table import new_table_properties
from tests.unit.timeline.engine import Behind
from tests.unit.timeline.memory import MemoryStorage
from timeline.errors import (
    CorruptTableError,
    InvalidInputError,
    StorageUnavailableError,
    TableNotFoundError,
)
from timeline.model.file_names import (
    INDEX_DEFINITIONS,
    METADATA_TABLE,
    PROPERTIES,
    PROPERTIES_BACKUP,
    TABLE_DESCRIPTOR,
    TIMELINE,
)
from timeline.ports.ports import AmbiguousWriteError
from timeline.properties.properties_file import (
    create_properties,
    load_config,
    may_have_misplaced_rows,
    misplaced_rows_noted,
    switch_metadata_table_off,
    update_properties,
)

NEW = new_table_properties("t", record_key_fields=("id",))
CHANGE = {"hoodie.table.partition.fields": "p"}


def made() -> MemoryStorage:
    storage = MemoryStorage()
    create_properties(storage, NEW, now="now")
    return storage


class Dying(Behind):
    """A storage that crashes before the n-th change."""

    def __init__(self, inner: MemoryStorage, lives: int) -> None:
        super().__init__(inner)
        self.lives = lives

    def _change(self) -> None:
        if self.lives == 0:
            raise KeyboardInterrupt
        self.lives -= 1

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self._change()
        self.inner.create(path, data, durable=durable)

    def write(self, path: str, data: bytes, *, durable: bool = False) -> None:
        self._change()
        self.inner.write(path, data, durable=durable)

    def delete(self, path: str) -> None:
        self._change()
        self.inner.delete(path)


class Updating(Behind):
    """An update deletes the properties before the first read, and ends after it."""

    def read(self, path: str) -> bytes:
        if path == PROPERTIES_BACKUP:
            self.inner.create(PROPERTIES, self.backup)
            self.inner.delete(PROPERTIES_BACKUP)
        return self.inner.read(path)

    def begin(self) -> None:
        self.backup = self.inner.read(PROPERTIES)
        self.inner.create(PROPERTIES_BACKUP, self.backup)
        self.inner.delete(PROPERTIES)


def test_an_update_that_ends_during_a_read_hides_no_table():
    storage = Updating(made())
    storage.begin()
    assert load_config(storage).name == "t"


def test_a_table_is_created_once():
    storage = made()
    with pytest.raises(InvalidInputError) as caught:
        create_properties(storage, new_table_properties("u"), now="now")
    assert caught.value.kind == "table_exists"
    assert load_config(storage).name == "t"


def test_a_table_is_not_created_while_its_properties_are_changed():
    """The properties file is missing for a moment, and the backup is complete."""
    storage = made()
    storage.create(PROPERTIES_BACKUP, storage.read(PROPERTIES))
    storage.delete(PROPERTIES)
    with pytest.raises(InvalidInputError) as caught:
        create_properties(storage, new_table_properties("u"), now="now")
    assert caught.value.kind == "table_exists"
    assert load_config(storage).name == "t"


def test_a_table_that_lost_its_properties_is_not_created_again():
    storage = made()
    storage.create(TABLE_DESCRIPTOR, b"{}")
    storage.create(f"{TIMELINE}/20260101000000000.commit.requested", b"")
    storage.delete(PROPERTIES)
    with pytest.raises(CorruptTableError, match=r"Restore .* from a backup") as caught:
        create_properties(storage, new_table_properties("u"), now="now")
    assert caught.value.kind == "properties_lost"
    assert storage.stat(PROPERTIES) is None
    storage.delete(TABLE_DESCRIPTOR)  # a file of a dropped table
    create_properties(storage, new_table_properties("u"), now="now")


def test_a_table_without_properties_and_without_instants_is_created_again():
    storage = MemoryStorage()
    storage.create(TABLE_DESCRIPTOR, b"{}")
    create_properties(storage, new_table_properties("u"), now="now")
    assert load_config(storage).name == "u"


def test_no_properties_are_no_table():
    with pytest.raises(TableNotFoundError):
        load_config(MemoryStorage())


def test_a_change_keeps_every_other_key():
    storage = made()
    before = dict(load_config(storage).raw)
    config = update_properties(storage, {**CHANGE, "future.key": "v"}, now="later")
    assert config.partition_fields == ("p",)
    assert dict(load_config(storage).raw) == {**before, **CHANGE, "future.key": "v"}
    assert storage.stat(PROPERTIES_BACKUP) is None


def states() -> dict[str, MemoryStorage]:
    """Return a table before a change, and the two states of an interrupted change."""
    plain, without_main, damaged = made(), made(), made()
    for storage in (without_main, damaged):
        storage.create(PROPERTIES_BACKUP, storage.read(PROPERTIES))
        storage.delete(PROPERTIES)
    damaged.create(PROPERTIES, b"hoodie.table.na")
    return {"plain": plain, "main missing": without_main, "main damaged": damaged}


@pytest.mark.parametrize("state", ["plain", "main missing", "main damaged"])
def test_a_crash_at_any_step_leaves_the_old_or_the_new(state: str):
    crashes = 0
    for lives in range(20):
        storage = states()[state]
        before = dict(load_config(storage).raw)
        try:
            update_properties(Dying(storage, lives), CHANGE, now="later")
        except KeyboardInterrupt:
            crashes += 1
        assert dict(load_config(storage).raw) in (before, {**before, **CHANGE}), lives
        again = update_properties(storage, CHANGE, now="again")
        assert again.partition_fields == ("p",)
        assert storage.stat(PROPERTIES_BACKUP) is None
    assert 4 <= crashes < 20


def test_a_truncated_file_is_not_accepted_as_whole():
    """Java rewrites the file itself, so a crash leaves its first part next to the backup."""
    whole = made().read(PROPERTIES)
    kept = len(whole) // 2
    assert whole[kept - 1 : kept] != b"\n"
    for size in range(kept, len(whole)):
        storage = MemoryStorage()
        storage.create(PROPERTIES, whole[:size])
        if whole[:size].endswith(b"\n"):
            continue
        with pytest.raises(CorruptTableError, match=r"hoodie\.properties \[see ") as caught:
            load_config(storage)
        assert caught.value.kind == "properties_torn"
        storage.create(PROPERTIES_BACKUP, whole)
        assert load_config(storage).record_key_fields == ("id",)


def test_a_damaged_properties_file_without_a_backup_is_reported():
    storage = made()
    storage.write(PROPERTIES, storage.read(PROPERTIES).replace(b"name=t", b"name=u"))
    with pytest.raises(CorruptTableError) as caught:
        load_config(storage)
    assert caught.value.fields["path"] == PROPERTIES


def test_a_damaged_backup_of_a_good_file_is_ignored():
    storage = made()
    storage.write(PROPERTIES_BACKUP, b"torn")
    assert load_config(storage).name == "t"
    assert update_properties(storage, CHANGE, now="later").partition_fields == ("p",)


def test_switching_the_metadata_table_off_empties_its_keys_and_removes_it():
    storage = made()
    update_properties(storage, {"hoodie.table.metadata.partitions": "files"}, now="now")
    storage.create(f"{METADATA_TABLE}/.hoodie/hoodie.properties", b"")
    assert load_config(storage).metadata_table_on
    config = switch_metadata_table_off(storage, now="later")
    assert not config.metadata_table_on
    assert storage.list(METADATA_TABLE) == []
    assert not may_have_misplaced_rows(storage, config)


def test_switching_off_a_record_index_notes_that_rows_may_be_misplaced():
    storage = made()
    on = {"hoodie.table.metadata.partitions": "files,record_index"}
    update_properties(storage, on, now="now")
    assert not misplaced_rows_noted(load_config(storage))
    config = switch_metadata_table_off(storage, now="later")
    assert not config.metadata_table_on
    assert misplaced_rows_noted(config)


def test_a_record_index_definition_means_that_rows_may_be_misplaced():
    storage = made()
    defined = {"hoodie.table.index.defs.path": INDEX_DEFINITIONS}
    config = update_properties(storage, defined, now="now")
    assert not may_have_misplaced_rows(storage, config)
    storage.create(INDEX_DEFINITIONS, b'{"indexDefinitions": {"column_stats": {}}}')
    assert not may_have_misplaced_rows(storage, config)
    storage.delete(INDEX_DEFINITIONS)
    storage.create(INDEX_DEFINITIONS, b'{"indexDefinitions": {"record_index": {}}}')
    assert may_have_misplaced_rows(storage, config)


class LosingAnswers(Behind):
    """The next creates happen or not, and their answers are lost."""

    def __init__(self, inner: MemoryStorage, *fates: bool) -> None:
        super().__init__(inner)
        self.fates = list(fates)

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        if not self.fates:
            return self.inner.create(path, data, durable=durable)
        if self.fates.pop(0):
            self.inner.create(path, data, durable=durable)
        raise AmbiguousWriteError(path)


@pytest.mark.parametrize("carried_out", [True, False])
def test_an_unanswered_create_is_checked_until_the_file_is_known_as_its_own(carried_out):
    storage = LosingAnswers(MemoryStorage(), carried_out)
    create_properties(storage, NEW, now="now")
    assert load_config(storage).name == "t"
    storage.fates = [carried_out]
    assert update_properties(storage, CHANGE, now="now").partition_fields == ("p",)
    assert storage.stat(PROPERTIES_BACKUP) is None


def test_a_table_that_another_writer_created_during_an_unanswered_create_remains():
    inner = MemoryStorage()
    storage = LosingAnswers(inner, False)
    create_properties(inner, new_table_properties("u"), now="now")
    with pytest.raises(InvalidInputError):
        create_properties(storage, NEW, now="now")
    assert load_config(storage).name == "u"


def test_a_storage_that_never_answers_is_reported():
    storage = LosingAnswers(MemoryStorage(), *[False] * 5)
    with pytest.raises(StorageUnavailableError, match="did not answer"):
        create_properties(storage, NEW, now="now")
