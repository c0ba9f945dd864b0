"""
Record keys and partition paths: compute the two texts of a record from its column values.

Java Hudi computes the same texts from the same rows, so every form here is its form (fmt 4.1, 4.3).
One different character would turn an update into an insert. Partition values become folder names,
so hostile values are refused here (SEC1).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.keys.generators import KeyGenerator, TimestampKeys
from filegroups.keys.timestamp_keys import bad_partition_value, timestamp_folders, timestamp_texts
from filegroups.schema.arrow_columns import one_array
from filegroups.schema.casting import cast_column
from filegroups.schema.evolution import MissingColumns, SchemaRules, canonical_type, evolved_type
from filegroups.schema.java_text import java_texts
from filegroups.schema.schema import KEY_COLUMN, PARTITION_COLUMN
from timeline.errors import CorruptTableError, InvalidInputError, SettingError
from timeline.model.file_names import NUMBERS, TimestampForm, TimestampTexts, check_partition_path

DEFAULT_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_PARTITION_KEY = "hoodie.datasource.write.partitionpath.field"
_ENCODE_KEY = "hoodie.datasource.write.partitionpath.urlencode"
_NULL_KEY, _EMPTY_KEY = "__null__", "__empty__"
_PREFIXED_SINGLE_KEY_VERSION = 9  # COMPLEX with one field: prefixed from this version on
_SEGMENT_BYTES_MAX = 255
_HOSTILE = re.compile(r"[\x00-\x1f\x7f\\]")
_ESCAPED = re.compile(r"[\x01-\x1f\"#%'*/:=?\\\x7f{\[\]^]")
_UTF16_RANK = np.arange(256, dtype=np.uint8)
_UTF16_RANK[[0xEE, 0xEF, 0xFE, 0xFF]] = [0xFE, 0xFF, 0xEE, 0xEF]
_UTF16_UNRANK = bytes(_UTF16_RANK)


_WITHOUT_PARTITIONS = frozenset({KeyGenerator.NON_PARTITION, KeyGenerator.GLOBAL_DELETE})


@dataclass(frozen=True, slots=True)
class VirtualKeys:
    """How keys are computed if files do not store them (meta columns off, fmt 4.2)."""

    fields: tuple[str, ...]
    prefixed: bool  # whether they have the form ``field:value``

    def of(self, table: pa.Table) -> pa.Array:
        """
        Compute each row's key.

        Shapes: table (n rows) -> string array (n,); order kept; no nulls.

        Raises:
            InvalidInputError: As ``record_keys``.
        """
        return _key_texts(table, self.fields, prefixed=self.prefixed)

    def fill(self, table: pa.Table) -> pa.Table:
        """Return rows with their keys in the key column, which files leave empty."""
        return set_keys(table, self.of(table))


def set_keys(table: pa.Table, keys: pa.Array) -> pa.Table:
    """Return rows with other values in the key column."""
    position = table.schema.get_field_index(KEY_COLUMN)
    return table.set_column(position, table.schema.field(position), keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySpec:
    """
    The columns of a table's record key, partition path and ordering.

    ``partition_types`` has one entry per partition field of a CUSTOM generator: ``SIMPLE``,
    ``TIMESTAMP``, or None if no property says it. ``times`` says how TIMESTAMP fields become
    folders, ``moments`` how timestamp columns do, ``key_moments`` how they become record keys. ``prefixes_single_key`` chooses the encoding of a
    COMPLEX key of one field; None uses that of the table version.
    """

    record_key_fields: tuple[str, ...]
    partition_fields: tuple[str, ...] = ()
    key_generator: KeyGenerator = KeyGenerator.SIMPLE
    hive_style: bool = False
    url_encode: bool = False
    table_version: int = 9
    ordering_fields: tuple[str, ...] = ()
    partition_types: tuple[str | None, ...] = ()
    times: TimestampKeys | None = None
    moments: TimestampTexts = NUMBERS
    key_moments: TimestampTexts = NUMBERS
    shows_moments: bool | None = None  # the option, if set; it must agree with stored keys
    prefixes_single_key: bool | None = None
    stores_keys: bool = True  # hoodie.populate.meta.fields
    stored_prefix: bool | None = None  # ``prefixes_single_key`` as in stored keys; it wins
    carried: bool = False  # rows have key and partition path in their meta columns

    @property
    def automatic(self) -> bool:
        """Whether rows have no key of their own; the writer of a file creates one."""
        return not (self.record_key_fields or self.carried)

    @property
    def virtual(self) -> VirtualKeys | None:
        """How to compute keys that files do not store; None if stored, or if there are none."""
        if self.stores_keys or self.automatic:
            return None
        return VirtualKeys(self.record_key_fields, self.prefixes_keys)

    @property
    def has_two_forms(self) -> bool:
        """Whether releases of Java Hudi differ in the keys: with the field's name, or without."""
        one = len(self.record_key_fields) == 1 and self.key_generator is KeyGenerator.COMPLEX
        return one and self.stores_keys and not self.carried

    @property
    def single_prefix(self) -> str:
        """The text before the value in the longer form of a key of one field."""
        return f"{self.record_key_fields[0]}:"

    @property
    def text_fields(self) -> frozenset[str]:
        """Fields whose values are parts of keys and folder names unchanged, unlike times."""
        fields = zip(self.partition_fields, self.are_times, strict=True)
        return frozenset(
            (*self.record_key_fields, *(name for name, is_time in fields if not is_time))
        )

    @property
    def are_times(self) -> tuple[bool, ...]:
        """For each partition field, whether its folders are made of times."""
        if self.key_generator is KeyGenerator.TIMESTAMP:
            return tuple(True for _ in self.partition_fields)
        if self.key_generator is KeyGenerator.CUSTOM:
            types = self.partition_types or (None,) * len(self.partition_fields)
            return tuple(kind == KeyGenerator.TIMESTAMP.value for kind in types)
        return tuple(False for _ in self.partition_fields)

    @property
    def untyped_fields(self) -> tuple[str, ...]:
        """Partition fields for which no property says how they become folders."""
        if self.key_generator is not KeyGenerator.CUSTOM:
            return ()
        types = self.partition_types or (None,) * len(self.partition_fields)
        known = (KeyGenerator.SIMPLE.value, KeyGenerator.TIMESTAMP.value)
        fields = zip(self.partition_fields, types, strict=True)
        return tuple(name for name, kind in fields if kind not in known)

    @property
    def prefixes_keys(self) -> bool:
        """Whether keys have the form ``field:value`` instead of the bare value (fmt 4.3)."""
        if len(self.record_key_fields) > 1 or self.key_generator is KeyGenerator.GLOBAL_DELETE:
            return True
        if self.key_generator is not KeyGenerator.COMPLEX:
            return False
        if self.stored_prefix is not None:
            return self.stored_prefix
        if self.table_version >= _PREFIXED_SINGLE_KEY_VERSION:
            return True  # the option is ignored, as in Java
        return bool(self.prefixes_single_key)


def addresses(rows: pa.Table, spec: KeySpec, schema: pa.Schema) -> tuple[pa.Array, pa.Array]:
    """
    Compute each row's record key and partition path.

    They are made of columns of the table's types. If the rows carry them in their meta columns,
    they are read from there, as Java does for a table without key fields.

    Args:
        rows: Incoming rows, with their meta columns.
        spec: The table's keys.
        schema: The table's columns.

    Shapes: rows (n rows) -> string arrays (n,), (n,); order kept; no nulls, except automatic keys.

    Errors: as ``key_columns``, ``record_keys``, ``partition_paths``.

    Raises:
        InvalidInputError: Rows carry no key (``null_key``) or an invalid partition path
            (``bad_partition_value``), or their partition columns were changed (``moved_row``).
    """
    if spec.carried:
        return _carried(rows, spec, schema)
    named = key_columns(rows, spec, schema)
    return record_keys(named, spec), partition_paths(named, spec)


def changed_addresses(
    rows: pa.Table, spec: KeySpec, schema: pa.Schema
) -> tuple[pa.Table, pa.Array, pa.Array]:
    """
    Return the changes of a statement, with their keys and partition paths.

    For a table without key fields: rows that were read carry both. A row that a merge inserts has
    a new key and no partition path, which comes from its columns; such rows move to the end.

    Shapes: rows (n rows) -> (n rows), (n,), (n,).
    """
    fresh = pc.is_null(rows.column(PARTITION_COLUMN))
    if not pc.any(fresh, min_count=0).as_py():
        return rows, *addresses(rows, spec, schema)
    rows = rows.take(pc.array_sort_indices(fresh.combine_chunks().cast(pa.int8())))
    known = rows.num_rows - pc.sum(fresh, min_count=0).as_py()
    keys, paths = addresses(rows.slice(0, known), spec, schema)
    new = rows.slice(known)
    _, new_paths = addresses(new, replace(spec, carried=False), schema)
    new_keys = one_array(new.column(KEY_COLUMN).cast(pa.string()))
    return rows, pa.concat_arrays([keys, new_keys]), pa.concat_arrays([paths, new_paths])


def _carried(rows: pa.Table, spec: KeySpec, schema: pa.Schema) -> tuple[pa.Array, pa.Array]:
    keys = one_array(
        pc.cast(_column(rows, KEY_COLUMN, "record key", "missing_key_column"), "string")
    )
    _refuse_missing(_is_missing(keys), (KEY_COLUMN,))
    named = key_columns(rows, spec, schema)
    fields = set(spec.partition_fields)
    made = partition_paths(named, spec) if fields.issubset(named.schema.names) else None
    carried = plain_column(rows, PARTITION_COLUMN)
    if carried is None:
        return keys, partition_paths(named, spec) if made is None else made
    paths = one_array(pc.cast(carried, pa.string()))
    for path in pc.unique(paths).to_pylist():
        _check_carried(path)
    moved = 0 if made is None else pc.sum(pc.not_equal(made, paths), min_count=0).as_py()
    if moved:
        raise InvalidInputError(
            "rows of a table without key fields cannot move to another partition: delete them in "
            "their present partition, then insert them without meta columns: "
            f"columns={list(spec.partition_fields)} rows={moved}",
            kind="moved_row",
            columns=list(spec.partition_fields),
            rows=moved,
        )
    return keys, paths


def _check_carried(path: str | None) -> None:
    """Refuse a hostile path that a row carries: it is untrusted like any value (SEC1)."""
    levels = [] if path == "" else (path or "/").split("/")
    if any(level.startswith(".") or not level or "\\" in level for level in levels):
        raise bad_partition_value(PARTITION_COLUMN, path or "", "is no partition path of a table")
    check_partition_path(path or "")


def key_columns(rows: pa.Table, spec: KeySpec, schema: pa.Schema) -> pa.Table:
    """
    Return the columns of keys and folders in the table's types, by their full names.

    Java makes texts of rows in the write schema, so one value has one text, whatever type the rows
    have. A wider type to which the table's column would grow (a delete with longer integers)
    replaces the table's type if both give the same text. A column that files leave out gets the
    type that it would be stored with.

    Args:
        rows: Incoming rows; missing columns are left out here.
        spec: The table's keys.
        schema: The table's columns.

    Shapes: rows (n rows) -> (n rows); order kept.

    Raises:
        InvalidInputError: A value does not fit the table's type (``lossy_value``), or the type does
            not fit or would change stored texts (``schema_mismatch``).
    """
    names = dict.fromkeys((*spec.record_key_fields, *spec.partition_fields))
    rules = SchemaRules(missing=MissingColumns(fill=True), keys=spec.text_fields)
    found = {name: plain_column(rows, name) for name in names}
    kept = {name: column for name, column in found.items() if column is not None}
    if not kept:
        return rows  # they give the number of rows
    kinds = {}
    for name, column in kept.items():
        mine = field_type(schema, name)
        if mine == column.type:
            kinds[name] = mine
        elif mine is None and not pa.types.is_null(column.type):
            kinds[name] = canonical_type(column.type, name)
        else:
            kinds[name] = evolved_type(mine or column.type, column.type, name, rules)
    columns = [cast_column(column, kinds[name], name) for name, column in kept.items()]
    return pa.Table.from_arrays(columns, names=list(kept))


def field_type(schema: pa.Schema, name: str) -> pa.DataType | None:
    """Return the type of a column, or of a field by its dotted name; None if there is none."""
    column = plain_column(schema.empty_table(), name)
    return None if column is None else column.type


def is_moment(kind: pa.DataType | None) -> bool:
    """Return whether a type is a timestamp with a zone; others are always written as numbers."""
    return kind is not None and pa.types.is_timestamp(kind) and kind.tz is not None


def record_keys(table: pa.Table, spec: KeySpec) -> pa.Array:
    """
    Compute each row's record key.

    Shapes: table (n rows) -> string array (n,); order kept; no nulls, except that automatic keys
    are all null.

    Raises:
        InvalidInputError: A key column is missing (``missing_key_column``), has a type without a
            key form (``unsupported_key_type``), or rows have no key (``null_key``; fields
            ``columns``, ``rows``).
    """
    if spec.automatic:
        return pa.nulls(table.num_rows, pa.string())
    fields = spec.record_key_fields
    return _key_texts(table, fields, prefixed=spec.prefixes_keys, moments=spec.key_moments)


def _key_texts(
    table: pa.Table, fields: Sequence[str], *, prefixed: bool, moments: TimestampTexts = NUMBERS
) -> pa.Array:
    columns = [_column(table, name, "record key", "missing_key_column") for name in fields]
    texts = [
        timestamp_texts(one_array(column), moments, name)
        if moments != NUMBERS and is_moment(column.type)
        else java_texts(column, name, "unsupported_key_type")
        for column, name in zip(columns, fields, strict=True)
    ]
    if not prefixed:
        _refuse_missing(_is_missing(texts[0]), fields)
        return one_array(texts[0])
    parts: list[Any] = []
    all_missing: Any = None
    for number, (name, text) in enumerate(zip(fields, texts, strict=True)):
        missing = _is_missing(text)
        all_missing = missing if all_missing is None else pc.and_(all_missing, missing)
        parts.append(pa.scalar(f",{name}:" if number else f"{name}:"))
        parts.append(_marked(text))
    _refuse_missing(all_missing, fields)
    return one_array(pc.binary_join_element_wise(*parts, ""))


def partition_paths(table: pa.Table, spec: KeySpec) -> pa.Array:
    """
    Compute each row's partition path; ``""`` for all if the table has no partitions.

    Only distinct values are formatted and checked; rows get their path by position.

    Shapes: table (n rows) -> string array (n,); order kept; no nulls.

    Raises:
        InvalidInputError: A partition column is missing (``missing_partition_column``) or has a
            type without a folder name (``unsupported_partition_type``); a value would leave the
            table, is not a time or gives no folder name (``bad_partition_value``; fields
            ``column``, ``value``); or the format of time folders is not known (``no_time_format``).
        SettingError: As ``refuse_untyped`` and ``refuse_colons``.
    """
    if spec.key_generator in _WITHOUT_PARTITIONS or not spec.partition_fields:
        return pa.repeat(pa.scalar(""), table.num_rows)
    refuse_untyped(spec)
    segments = []
    for name, is_time in zip(spec.partition_fields, spec.are_times, strict=True):
        column = _column(table, name, "partition", "missing_partition_column")
        if is_time:
            segments.append(_time_segments(column, name, spec))
            continue
        if is_moment(column.type) and spec.shows_moments and spec.moments == NUMBERS:
            refuse_colons(spec, name)
        codes = one_array(column.dictionary_encode(null_encoding="encode"))
        texts, plain = _texts(codes.dictionary, name, spec)
        folders = [_segment(value, name, plain) for value in texts.to_pylist()]
        segments.append(pc.take(pa.array(folders, pa.string()), codes.indices))
    if len(segments) == 1:
        return segments[0]
    return pc.binary_join_element_wise(*segments, "/")


def refuse_colons(spec: KeySpec, name: str) -> None:
    """
    Refuse a new table whose folders would have colons, because Java Hudi fails on their paths.

    Raises:
        SettingError: Folder names are not encoded (``setting_missing``).
    """
    if not spec.url_encode:
        raise SettingError(
            "folders would show timestamps with colons, which Java Hudi cannot write or read: create "
            f"the table with {_ENCODE_KEY}=true, or partition by another column: column={name!r}",
            kind="setting_missing",
            key=_ENCODE_KEY,
            value="false",
            layer="hoodie.properties",
            suggestion="true",
        )


def refuse_untyped(spec: KeySpec) -> None:
    """
    Refuse to make folders if no property gives the field types, as in old CUSTOM tables.

    Raises:
        SettingError: A partition field has no type (``setting_missing``).
    """
    if not spec.untyped_fields:
        return
    example = ",".join(f"{name}:SIMPLE" for name in spec.partition_fields)
    raise SettingError(
        "the table's key generator is CUSTOM, and no setting says how these partition fields "
        f"become folders: {list(spec.untyped_fields)}. Set SIMPLE or TIMESTAMP for each, as the "
        f"table's other writers do: {_PARTITION_KEY}={example}",
        kind="setting_missing",
        key=_PARTITION_KEY,
        value="",
        layer="hoodie.properties",
        suggestion=example,
    )


def _texts(values: pa.Array, name: str, spec: KeySpec) -> tuple[pa.Array, KeySpec]:
    """Return values as folders show them, and the spec; timestamps may be escaped already."""
    kind = values.type
    if is_moment(kind) and spec.moments.form is not TimestampForm.NUMBER:
        escaped = spec.moments.form is TimestampForm.SQL
        texts = timestamp_texts(values, spec.moments, name)
        return texts, replace(spec, url_encode=False) if escaped else spec
    return java_texts(values, name, "unsupported_partition_type"), spec


def _time_segments(column: pa.ChunkedArray, name: str, spec: KeySpec) -> pa.Array:
    if spec.times is None:
        raise InvalidInputError(
            "the folders show times, and the table's settings for them are incomplete: set "
            "hoodie.keygen.timebased.timestamp.type and "
            "hoodie.keygen.timebased.output.dateformat as the table's other writers do: "
            f"column={name!r}",
            kind="no_time_format",
            column=name,
        )
    found = timestamp_folders(one_array(column), spec.times, name=name)
    folders = [_time_folder(text, name, spec) for text in found.dictionary.to_pylist()]
    return pc.take(pa.array(folders, pa.string()), found.indices)


def _time_folder(text: str, name: str, spec: KeySpec) -> str:
    # A slash of the output pattern makes levels on purpose (fmt 4.1), unless it is encoded.
    if spec.url_encode:
        return _segment(text, name, spec)
    levels = text.split("/")
    if any(level in ("", ".", "..") for level in levels):
        raise bad_partition_value(name, text, "would name no folder, or one outside of the table")
    plain = replace(spec, hive_style=False)
    path = "/".join(_segment(level, name, plain) for level in levels)
    return f"{name}={path}" if spec.hive_style else path


def java_order(key: str) -> bytes:
    """Return a sort key that orders texts as Java's ``compareTo`` does: by UTF-16 code units."""
    return key.encode("utf-16-be", "surrogatepass")


def key_range(keys: pa.Array | pa.ChunkedArray) -> tuple[str, str] | None:
    """
    Return the least and the greatest key in Java's order, None without keys.

    Shapes: keys (n,) strings, all or none of them null.
    """
    ends: list[str] = []
    for chunk in keys.chunks if isinstance(keys, pa.ChunkedArray) else [keys]:
        if len(chunk) > chunk.null_count:
            ends.extend(_chunk_range(chunk))
    if not ends:
        return None
    return min(ends, key=java_order), max(ends, key=java_order)


def _chunk_range(chunk: pa.Array) -> tuple[str, str]:
    # UTF-8 bytes order texts by code point. UTF-16 puts the lead bytes F0-F4 (surrogate pairs)
    # before EE and EF. Replacing these two by values above F4 makes byte order equal to Java's.
    _, offsets, data = chunk.buffers()
    text = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    if text.max(initial=0) >= 0xEE:
        renamed = pa.py_buffer(_UTF16_RANK[text])
        binary = pa.binary() if pa.types.is_string(chunk.type) else pa.large_binary()
        parts = [None, offsets, renamed]
        chunk = pa.Array.from_buffers(binary, len(chunk), parts, offset=chunk.offset)
    else:
        chunk = chunk.view(pa.binary()) if pa.types.is_string(chunk.type) else chunk
    found = pc.min_max(chunk)
    return _original(found["min"].as_py()), _original(found["max"].as_py())


def _original(ranked: bytes | str) -> str:
    if isinstance(ranked, str):
        return ranked
    return ranked.translate(_UTF16_UNRANK).decode()


def validate_ordering(table: pa.Table, fields: Sequence[str]) -> None:
    """
    Refuse rows without an ordering value: Java mergers fail on them forever after (fmt 7).

    Raises:
        InvalidInputError: ``missing_ordering_column``, or ``null_ordering`` with the fields
            ``column`` and ``rows``.
    """
    for name in fields:
        column = _column(table, name, "ordering", "missing_ordering_column")
        if column.null_count:
            raise InvalidInputError(
                "rows have no value in the ordering field: fill it, or remove the rows: "
                f"column={name!r} rows={column.null_count}",
                kind="null_ordering",
                column=name,
                rows=column.null_count,
            )


def _column(table: pa.Table, name: str, role: str, kind: str) -> pa.ChunkedArray:
    column = plain_column(table, name)
    if column is None:
        raise _missing_column(name, role, kind)
    return column


def plain_column(table: pa.Table, name: str) -> pa.ChunkedArray | None:
    """Return a column, or a field inside one by its dotted name; None if there is none."""
    position = table.schema.get_field_index(name)
    if position >= 0:
        return table.column(position)
    head, *rest = name.split(".")
    position = table.schema.get_field_index(head)
    if position < 0:
        return None
    column = table.column(position)
    for step in rest:
        if not pa.types.is_struct(column.type) or column.type.get_field_index(step) < 0:
            return None
        column = pc.struct_field(column, step)
    return column


def _missing_column(name: str, role: str, kind: str) -> InvalidInputError:
    return InvalidInputError(
        f"the data has no column for the table's {role} field; add it: column={name!r}",
        kind=kind,
        column=name,
    )


def _segment(value: str | None, name: str, spec: KeySpec) -> str:
    text = DEFAULT_PARTITION if value is None or value == "" else value
    if spec.url_encode:
        if "\x00" in text:
            raise bad_partition_value(
                name, text, "contains a zero byte, which a folder name cannot contain"
            )
        text = _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)
    elif _HOSTILE.search(text):
        raise bad_partition_value(
            name, text, "contains a backslash or control character; remove it"
        )
    if spec.hive_style:
        text = f"{name}={text}"
    # As in Java, a slash that is not encoded makes levels: 2018/08/31 is a folder of days.
    for level in text.split("/"):
        if not level:
            raise bad_partition_value(name, text, "has an empty level between slashes; clean it")
        if level.startswith("."):
            raise bad_partition_value(
                name, text, "would be a hidden folder or lead out of its parent"
            )
        if len(level.encode()) > _SEGMENT_BYTES_MAX:
            raise bad_partition_value(name, text[:80], f"is longer than {_SEGMENT_BYTES_MAX} bytes")
    return text


def _is_missing(text: Any) -> Any:
    empty = pc.equal(text, "")
    return pc.fill_null(empty, True) if empty.null_count else empty


def _marked(text: Any) -> Any:
    marked = pc.if_else(pc.equal(text, ""), _EMPTY_KEY, text)
    return pc.fill_null(marked, _NULL_KEY)


def _refuse_missing(missing: Any, fields: Sequence[str]) -> None:
    rows = pc.sum(missing, min_count=0).as_py()
    if rows:
        raise InvalidInputError(
            "rows have no record key (null or empty): fill it, or remove the rows: "
            f"columns={list(fields)} rows={rows}",
            kind="null_key",
            columns=list(fields),
            rows=rows,
        )


# ---- Partition columns that files leave out: their values are in the folder's name
# With ``hoodie.datasource.write.drop.partition.columns`` Java Hudi returns them as text after the
# table's other columns; hoodoo does the same. A partition path is parsed by the rules that made it
# (fmt 4.1).


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedPartitionColumns:
    """
    The partition fields and how folders name them.

    ``left_out`` are the fields that files lack: all of them, or fewer in a table that began to
    leave them out later.
    """

    fields: tuple[str, ...]
    dropped: tuple[str, ...]
    hive_style: bool = False
    url_encode: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The columns that files lack, as they are read."""
        return pa.schema([pa.field(name, pa.string()) for name in self.dropped])

    def values(self, partition_path: str) -> dict[str, str | None]:
        """
        Return the values in a partition path.

        Raises:
            CorruptTableError: It does not have the form that the table's properties describe.
        """
        parts = self._parts(partition_path.split("/"))
        if parts is None:
            raise CorruptTableError(
                f"the files omit the partition columns {list(self.fields)}, and a folder's name "
                "does not contain their values: rewrite that partition with the engine that made "
                f"it: {partition_path}",
                kind="bad_partition_path",
                path=partition_path,
            )
        if self.url_encode:
            parts = [unquote(part) for part in parts]
        return {
            name: None if part == DEFAULT_PARTITION else part
            for name, part in zip(self.fields, parts, strict=True)
        }

    def fill(self, rows: pa.Table, partition_path: str) -> pa.Table:
        """Append the missing columns to rows of one partition."""
        values = self.values(partition_path)
        for column in self.schema:
            value = pa.scalar(values[column.name], pa.string())
            rows = rows.append_column(column, pa.repeat(value, rows.num_rows))
        return rows

    def _parts(self, levels: list[str]) -> list[str] | None:
        """Return one text per field; the folder of a time may have several levels."""
        if self.hive_style:
            found: list[str] = []
            for level in levels:
                named = self.fields[len(found) :]
                if named and level.startswith(f"{named[0]}="):
                    found.append(level.partition("=")[2])
                elif found:
                    found[-1] += f"/{level}"
                else:
                    return None
            return found if len(found) == len(self.fields) else None
        if len(self.fields) == 1:
            return ["/".join(levels)]
        return levels if len(levels) == len(self.fields) else None
