"""
``hoodie.properties`` on storage: read it, recover it, create it, change it (fmt 1.1 to 1.3).

A change goes through a backup: whoever finds no valid main file uses the backup, so no
crash between the steps leaves the table without its configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from timeline.codecs.properties import format_properties, parse_properties
from timeline.errors import (
    CorruptTableError,
    InvalidInputError,
    MetadataTableOnError,
    StorageUnavailableError,
    TableNotFoundError,
)
from timeline.layout import (
    INDEX_DEFINITIONS,
    METADATA_TABLE,
    PROPERTIES,
    PROPERTIES_BACKUP,
    SLOTS,
    TABLE_DESCRIPTOR,
    TIMELINE,
)
from timeline.model.table_config import TableConfig
from timeline.ports.storage import (
    AmbiguousWriteError,
    ObjectExistsError,
    ObjectMissingError,
    Storage,
)

__all__ = [
    "create_properties",
    "load_config",
    "may_have_misplaced_rows",
    "metadata_table_off",
    "misplaced_rows_noted",
    "note_misplaced_rows",
    "refuse_behind_metadata_table",
    "switch_metadata_table_off",
    "update_properties",
]

_CREATE_TRIES = 5
_ROWS_ELSEWHERE = "hoodoo.table.rows.may.lie.in.other.partitions"
_RECORD_INDEX = "record_index"
_METADATA_KEYS = ("hoodie.table.metadata.partitions", "hoodie.table.metadata.partitions.inflight")


def load_config(storage: Storage) -> TableConfig:
    """
    The table's configuration. Outside: 1 get, 2 more when an update was interrupted.

    Raises:
        TableNotFoundError: There is neither the file nor its backup.
        CorruptTableError: The file is damaged and no valid backup exists.
        UnsupportedTableError: The table version is unknown.
    """
    failure: CorruptTableError | None = None
    # Once more at the end: an update that was under way may have ended between the two.
    for path in (PROPERTIES, PROPERTIES_BACKUP, PROPERTIES):
        try:
            return _read(storage, path)
        except ObjectMissingError:
            continue
        except CorruptTableError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    raise TableNotFoundError(
        "there is no Hudi table here; create one with 'hoodoo table create' or correct the "
        f"path: {storage.base_uri}",
        path=storage.base_uri,
    )


def create_properties(storage: Storage, properties: Mapping[str, str], *, now: str) -> TableConfig:
    """
    Make a new table: its folders' first files and the properties, the properties last.

    Args:
        storage: An empty or new folder.
        properties: From ``new_table_properties``.
        now: Text of the moment for the file's comment.

    Raises:
        InvalidInputError: There is a table already (``kind`` ``table_exists``).
        CorruptTableError: There is one that lost its properties.
        StorageUnavailableError: The storage did not answer; the table may be there.

    Outside: 2 looks at a file, 1 create; at a place where a table was 1 look and 2 lists more.
    """
    config = TableConfig.from_properties(properties)
    if storage.stat(PROPERTIES_BACKUP) is not None:
        raise _exists(storage)  # its properties are being changed just now, or that broke off
    made = storage.stat(TABLE_DESCRIPTOR) is not None
    if made and storage.stat(PROPERTIES) is None and _was_written_to(storage):
        raise CorruptTableError(
            "a table is here whose properties are lost, and a new one would read its files in "
            f"another way: bring {PROPERTIES} back from a backup, or, when the table was dropped, "
            f"delete what is left of it: {storage.base_uri}",
            kind="properties_lost",
            path=PROPERTIES,
        )
    try:
        _create(storage, PROPERTIES, _bytes(properties, now))
    except ObjectExistsError:
        raise _exists(storage) from None
    return config


def _was_written_to(storage: Storage) -> bool:
    """
    Whether a table has rows, or may come to have some.

    Where a slot store decides, a table's identity is there before its properties (SLOT-6), and who
    makes it may die in between: the next one must be able to make it.
    """
    return bool(storage.names(TIMELINE) or storage.names(SLOTS))


def _exists(storage: Storage) -> InvalidInputError:
    return InvalidInputError(
        f"there is a table already; open it or choose another path: {storage.base_uri}",
        kind="table_exists",
        path=storage.base_uri,
    )


def update_properties(
    storage: Storage, changes: Mapping[str, str | None], *, now: str
) -> TableConfig:
    """
    Change keys of the properties, through the backup (fmt 1.3). Call it under the lock.

    None takes a key away. Unknown keys survive; a stale checksum sibling goes first (fmt 1).
    """
    current = dict(load_config(storage).raw)
    data = _bytes(current, now)
    if not _is_valid(storage, PROPERTIES):
        # An earlier change was interrupted: the backup is the only valid copy until this is.
        storage.delete(PROPERTIES)
        _create(storage, PROPERTIES, data)
    storage.delete(PROPERTIES_BACKUP)
    _create(storage, PROPERTIES_BACKUP, data)
    changed = {**current, **changes}
    updated = {key: text for key, text in changed.items() if text is not None}
    storage.delete(PROPERTIES)
    _create(storage, PROPERTIES, _bytes(updated, now))
    config = _read(storage, PROPERTIES)
    storage.delete(PROPERTIES_BACKUP)
    return config


def may_have_misplaced_rows(storage: Storage, config: TableConfig) -> bool:
    """
    Whether rows may lie in a partition whose path is not that of their partition columns.

    A writer with a global index can update a row where it is. Our writers note that. Java Hudi's
    record index does so unless told otherwise. Its definition stays when Java drops that index or
    switches the metadata table off; version 8 has no such definition.

    Outside: 1 get where the table has definitions of indexes and notes nothing.
    """
    if misplaced_rows_noted(config) or _RECORD_INDEX in config.metadata_partitions:
        return True
    if not config.raw.get("hoodie.table.index.defs.path"):
        return False
    try:
        return f'"{_RECORD_INDEX}"'.encode() in storage.read(INDEX_DEFINITIONS)
    except ObjectMissingError:
        return False


def misplaced_rows_noted(config: TableConfig) -> bool:
    """Whether the properties say that rows may lie elsewhere."""
    return config.raw.get(_ROWS_ELSEWHERE, "").strip().lower() == "true"


def note_misplaced_rows(storage: Storage, *, now: str) -> TableConfig:
    """Write down that rows may lie elsewhere (``may_have_misplaced_rows``). Call it under the lock."""
    return update_properties(storage, {_ROWS_ELSEWHERE: "true"}, now=now)


def refuse_behind_metadata_table(
    config: TableConfig, *, without_metadata_table: bool = False
) -> None:
    """
    Refuse to change files that a metadata table would go on listing, or would not list.

    Args:
        config: The table's own configuration now.
        without_metadata_table: Whether the publication switches it off (``TableLimits``).

    Raises:
        MetadataTableOnError: The metadata table is on (FOR-7).
    """
    if config.metadata_table_on and not without_metadata_table:
        raise MetadataTableOnError(
            "the table's metadata table is on and this release does not maintain it; set "
            "hoodie.metadata.enable=false, and it is switched off when this is published (Java "
            f"Hudi can build it again): {', '.join(config.metadata_partitions)}",
            partitions=list(config.metadata_partitions),
        )


def metadata_table_off(config: TableConfig) -> dict[str, str]:
    """
    The properties that change when the metadata table is switched off, as Java Hudi does (fmt 10).

    A record index leaves the note that rows may lie elsewhere.
    """
    note = {_ROWS_ELSEWHERE: "true"} if _RECORD_INDEX in config.metadata_partitions else {}
    return dict.fromkeys(_METADATA_KEYS, "") | note


def switch_metadata_table_off(storage: Storage, *, now: str) -> TableConfig:
    """
    Do what Java Hudi does with ``hoodie.metadata.enable=false``.

    It changes the properties (``metadata_table_off``), then deletes the metadata table's folder. A
    later Java writer creates the metadata table again. The caller holds the lock.
    """
    config = update_properties(storage, metadata_table_off(load_config(storage)), now=now)
    storage.delete_folder(METADATA_TABLE)
    return config


def _create(storage: Storage, path: str, data: bytes) -> None:
    """
    Create; after a lost answer the identical bytes are asked for again (UNK-1).

    Raises:
        ObjectExistsError: Somebody else made it.
        StorageUnavailableError: The storage never answered.
    """
    asked = False
    for _ in range(_CREATE_TRIES):
        try:
            storage.create(path, data)
            return
        except ObjectExistsError:
            if asked and storage.read(path) == data:
                return  # an earlier request of ours was carried out
            raise
        except AmbiguousWriteError:
            asked = True
    raise StorageUnavailableError(
        f"the storage did not answer; look whether the file is there, then repeat: {path}",
        path=path,
    )


def _read(storage: Storage, path: str) -> TableConfig:
    return _parsed(storage.read(path), path)


@lru_cache(maxsize=16)
def _parsed(data: bytes, path: str) -> TableConfig:
    """Looked at by every commit, and hardly ever changed."""
    if data and not data.endswith((b"\n", b"\r")):
        # Each line of every writer has its end. Java makes the file in its place, its checksum is
        # of two names alone, and without the last keys rows are keyed and merged in another way.
        raise CorruptTableError(
            "properties break off in the middle of a line: restore them from a backup, or end the "
            f"last line if nothing is missing: {path}",
            kind="properties_torn",
            path=path,
        )
    return TableConfig.from_properties(parse_properties(data, path=path), path=path)


def _is_valid(storage: Storage, path: str) -> bool:
    try:
        _read(storage, path)
    except (ObjectMissingError, CorruptTableError):
        return False
    return True


def _bytes(properties: Mapping[str, str], now: str) -> bytes:
    return format_properties(properties, (f"Updated at {now}",))
