"""
``hoodie.properties`` and the table descriptor: their text, and how they are changed.

Reading follows `java.util.Properties` in all its forms (format 1.1). Writing gives Java's output,
except that the order is the mapping's and the comment lines are the caller's, because this module
reads no clock.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

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
    SLOTS,
    TABLE_DESCRIPTOR,
    TIMELINE,
)
from timeline.model.table_config import TableConfig
from timeline.ports.ports import AmbiguousWriteError, ObjectExistsError, ObjectMissingError, Storage

PROPERTIES_BYTES_MAX: Final = 16 * 1024 * 1024
"""Largest properties text that is read, bytes."""

_BLANKS: Final = " \t\f"
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_TRAILING_BACKSLASHES: Final = re.compile(r"\\+\Z")
_PAIR: Final = re.compile(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_NAMED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_WRITTEN: Final = {
    "\\": "\\\\",
    "\t": "\\t",
    "\n": "\\n",
    "\r": "\\r",
    "\f": "\\f",
    "=": "\\=",
    ":": "\\:",
    "#": "\\#",
    "!": "\\!",
}
_TO_ESCAPE: Final = re.compile(r"[\\=:#!]|[^ -~]")


def parse_properties(
    data: bytes, *, path: str = "", bytes_max: int = PROPERTIES_BYTES_MAX
) -> dict[str, str]:
    """
    Read properties text; the last of several equal keys wins, as in Java.

    Args:
        data: The whole file, ISO-8859-1.
        path: The file's name in errors.
        bytes_max: Largest text that is read, bytes.

    Raises:
        CorruptTableError: the text is larger than `bytes_max`, contains a zero byte, or an escape
            that Java refuses, too.
    """
    if len(data) > bytes_max:
        raise _damaged(path, f"{len(data)} bytes are more than the allowed {bytes_max}")
    if b"\x00" in data:
        raise _damaged(path, "it contains zero bytes")
    properties = {}
    for line in _logical_lines(data.decode("latin-1")):
        pair = _PAIR.fullmatch(line)
        if pair is None:
            raise _damaged(path, "a line is not a key and a value")
        key, value = (_unescaped(part, path) for part in pair.groups())
        properties[key] = value
    return properties


def format_properties(mapping: Mapping[str, str], comments: Iterable[str] = ()) -> bytes:
    """
    Write properties text in the order of the mapping, comment lines first.

    Args:
        mapping: Keys and values; any Unicode text.
        comments: Lines without the leading `#`; Java's own file has two, with the time.

    Raises:
        InvalidInputError: a text contains an unpaired surrogate or a zero character, or a comment
            has more than one line.
    """
    lines = []
    for comment in comments:
        if _LINE_END.search(comment):
            raise InvalidInputError(
                f"a comment must be one line: split it: {comment!r}", kind="properties_text"
            )
        lines.append("#" + _TO_ESCAPE.sub(_latin_comment, comment))
    for key, value in mapping.items():
        escaped_key = _escaped(key).replace(" ", "\\ ")
        escaped_value = _escaped(value)
        if escaped_value.startswith(" "):
            escaped_value = "\\" + escaped_value
        lines.append(f"{escaped_key}={escaped_value}")
    return "".join(line + "\n" for line in lines).encode("ascii")


def _logical_lines(text: str) -> Iterator[str]:
    """Yield lines without comments and blanks, joined after a backslash at the line's end."""
    joined = ""
    continued = False
    for natural in _LINE_END.split(text):
        line = natural.lstrip(_BLANKS)
        if not continued and (not line or line[0] in "#!"):
            continue
        slashes = _TRAILING_BACKSLASHES.search(line)
        continued = slashes is not None and len(slashes.group()) % 2 == 1
        joined += line[:-1] if continued else line
        if not continued:
            yield joined
            joined = ""
    if joined:
        yield joined


def _unescaped(text: str, path: str) -> str:
    if "\\" not in text:
        return text

    def plain(match: re.Match[str]) -> str:
        escape = match.group(1)
        if escape == "u":
            raise _damaged(path, "a Unicode escape lacks its four digits")
        if len(escape) > 1:
            return chr(int(escape[1:], 16))
        return _NAMED.get(escape, escape)

    units = _ESCAPE.sub(plain, text)
    try:
        # Escapes are UTF-16 units: two of them make one character beyond the first plane.
        return units.encode("utf-16-be", "surrogatepass").decode("utf-16-be")
    except UnicodeDecodeError as failure:
        raise _damaged(path, "a Unicode escape is half a character") from failure


def _escaped(text: str) -> str:
    return _TO_ESCAPE.sub(_written, text)


def _written(match: re.Match[str]) -> str:
    character = match.group()
    named = _WRITTEN.get(character)
    if named is not None:
        return named
    try:
        units = character.encode("utf-16-be")
    except UnicodeEncodeError as failure:
        raise InvalidInputError(
            f"a text contains half a character: correct it: {character!r}", kind="properties_text"
        ) from failure
    if character == "\x00":
        raise InvalidInputError(
            "a text contains a zero character: remove it: '\\x00'", kind="properties_text"
        )
    return "".join(f"\\u{units[i]:02X}{units[i + 1]:02X}" for i in range(0, len(units), 2))


def _latin_comment(match: re.Match[str]) -> str:
    character = match.group()
    return character if character in "\\=:#!" else _written(match)


def _damaged(path: str, why: str) -> CorruptTableError:
    return CorruptTableError(
        f"the properties file is damaged ({why}): restore it from a backup, or from "
        f"hoodie.properties.backup in its folder: {path}",
        path=path,
    )


# ---- The table descriptor: a table's identity and its slot store (F27, SLOT-6)
#
# One small file per table, created once and never changed. An address is not an identity, since a
# table can be dropped and another created at the same address. Writers that take slots in different
# places would not exclude each other, so the place is a property of the table.


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDescriptor:
    """The facts of a table that never change."""

    table_id: str
    slots: str  # as ``StorageCapabilities.slots``


def encode_table_descriptor(facts: TableDescriptor) -> bytes:
    """Return the file's bytes."""
    return json.dumps({"id": facts.table_id, "slots": facts.slots}).encode()


def decode_table_descriptor(data: bytes) -> TableDescriptor:
    """
    Read the file.

    Raises:
        CorruptTableError: It is damaged.
    """
    try:
        document = json.loads(data)
        return TableDescriptor(table_id=str(document["id"]), slots=str(document["slots"]))
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise CorruptTableError(
            "the file with the table's identity cannot be read: restore it from a backup: "
            f"{TABLE_DESCRIPTOR}",
            path=TABLE_DESCRIPTOR,
        ) from error


# ---- Read, recover, create and change ``hoodie.properties`` on storage (fmt 1.1 to 1.3)
# A change writes a backup first. A reader that finds no valid main file uses the backup, so no crash
# between the steps leaves the table without its configuration.

_CREATE_TRIES = 5
_ROWS_ELSEWHERE = "hoodoo.table.rows.may.lie.in.other.partitions"
_RECORD_INDEX = "record_index"
_METADATA_KEYS = ("hoodie.table.metadata.partitions", "hoodie.table.metadata.partitions.inflight")


def load_config(storage: Storage) -> TableConfig:
    """
    Read the table's configuration. Outside: 1 get, 2 more if an update was interrupted.

    Raises:
        TableNotFoundError: Neither the file nor its backup exists.
        CorruptTableError: The file is damaged and no valid backup exists.
        UnsupportedTableError: The table version is unknown.
    """
    failure: CorruptTableError | None = None
    # Read the main file again at the end: a running update may have ended between the two reads.
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
        "the path has no Hudi table: create one with 'hoodoo table create', or correct the path: "
        f"{storage.base_uri}",
        path=storage.base_uri,
    )


def create_properties(storage: Storage, properties: Mapping[str, str], *, now: str) -> TableConfig:
    """
    Create a new table: its folders' first files, then the properties.

    Args:
        storage: An empty or new folder.
        properties: From ``new_table_properties``.
        now: The current time as text, for the file's comment.

    Raises:
        InvalidInputError: A table exists already (``kind`` ``table_exists``).
        CorruptTableError: A table exists that lost its properties.
        StorageUnavailableError: The storage did not answer; the table may exist.

    Outside: 2 stats, 1 create; in the place of a dropped table 1 stat and 2 lists more.
    """
    config = TableConfig.from_properties(properties)
    if storage.stat(PROPERTIES_BACKUP) is not None:
        raise _exists(storage)  # a change of its properties is running or was interrupted
    made = storage.stat(TABLE_DESCRIPTOR) is not None
    if made and storage.stat(PROPERTIES) is None and _was_written_to(storage):
        raise CorruptTableError(
            "a table exists here without its properties, and a new one would read its files in "
            f"another way. Restore {PROPERTIES} from a backup, or delete the remaining files if "
            f"the table was dropped: {storage.base_uri}",
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
    Return whether a table has rows, or may get some.

    With a slot store, a table's identity exists before its properties (SLOT-6), and the process
    that creates the table may die in between. The next one must be able to create it.
    """
    return bool(storage.names(TIMELINE) or storage.names(SLOTS))


def _exists(storage: Storage) -> InvalidInputError:
    return InvalidInputError(
        f"the path already has a table: open it, or choose another path: {storage.base_uri}",
        kind="table_exists",
        path=storage.base_uri,
    )


def update_properties(
    storage: Storage, changes: Mapping[str, str | None], *, now: str
) -> TableConfig:
    """
    Change keys of the properties, through the backup (fmt 1.3). Call it under the lock.

    None deletes a key. Unknown keys survive; an outdated checksum sibling is deleted first (fmt 1).
    """
    current = dict(load_config(storage).raw)
    data = _bytes(current, now)
    if not _is_valid(storage, PROPERTIES):
        # An earlier change was interrupted: the backup is the only valid copy until this write
        # ends.
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
    Return whether rows may be in a partition other than that of their partition columns.

    A writer with a global index can update a row in its old partition. Our writers note that in the
    properties. Java Hudi's record index does so unless configured otherwise. Its definition stays
    when Java drops that index or switches the metadata table off; version 8 has no such definition.

    Outside: 1 get if the table has definitions of indexes and no note.
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
    """Return whether the properties note that rows may be elsewhere."""
    return config.raw.get(_ROWS_ELSEWHERE, "").strip().lower() == "true"


def note_misplaced_rows(storage: Storage, *, now: str) -> TableConfig:
    """Note that rows may be elsewhere (``may_have_misplaced_rows``). Call it under the lock."""
    return update_properties(storage, {_ROWS_ELSEWHERE: "true"}, now=now)


def metadata_table_off(config: TableConfig) -> dict[str, str]:
    """
    Return the properties that change when the metadata table is switched off (fmt 10).

    They are those of Java Hudi. A record index leaves the note that rows may be elsewhere.
    """
    note = {_ROWS_ELSEWHERE: "true"} if _RECORD_INDEX in config.metadata_partitions else {}
    return dict.fromkeys(_METADATA_KEYS, "") | note


def switch_metadata_table_off(storage: Storage, *, now: str) -> TableConfig:
    """
    Switch the metadata table off as Java Hudi does with ``hoodie.metadata.enable=false``.

    It changes the properties (``metadata_table_off``), then deletes the metadata table's folder. A
    later Java writer creates the metadata table again. The caller holds the lock.
    """
    config = update_properties(storage, metadata_table_off(load_config(storage)), now=now)
    storage.delete_folder(METADATA_TABLE)
    return config


def _create(storage: Storage, path: str, data: bytes) -> None:
    """
    Create; after a lost answer send the identical bytes again (UNK-1).

    Raises:
        ObjectExistsError: Another writer made it.
        StorageUnavailableError: The storage never answered.
    """
    asked = False
    for _ in range(_CREATE_TRIES):
        try:
            storage.create(path, data)
            return
        except ObjectExistsError:
            if asked and storage.read(path) == data:
                return  # an earlier request of ours was executed
            raise
        except AmbiguousWriteError:
            asked = True
    raise StorageUnavailableError(
        f"the storage did not answer: check whether the file exists, then repeat the call: {path}",
        path=path,
    )


def _read(storage: Storage, path: str) -> TableConfig:
    return _parsed(storage.read(path), path)


@lru_cache(maxsize=16)
def _parsed(data: bytes, path: str) -> TableConfig:
    """Parse the properties, cached: every commit reads them, and they rarely change."""
    if data and not data.endswith((b"\n", b"\r")):
        # Every writer ends each line. Java writes the file in place, so it can be torn, and its
        # checksum covers only two names. Without the last keys, rows would get other keys and
        # another merge.
        raise CorruptTableError(
            "the properties end in the middle of a line: restore them from a backup, or end the "
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
