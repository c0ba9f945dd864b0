"""
Detect the form of stored keys of a complex key generator with one field: ``id:7`` or ``7``.

Releases of Java Hudi differ in it (0.14.1 to 1.0.2 write the bare value), and no property of the
table records it. The writer reads the form from keys in the files and uses it, so that no record
gets a second key. It refuses files with both forms.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from filegroups.files.parquet import Footer, read_footer
from filegroups.files.slice_reader import read_slice
from filegroups.keys.java_to_string import java_texts
from filegroups.keys.keys import KeySpec, java_order, plain_column
from filegroups.reading.read import plan_scan, view_of
from filegroups.schema.schema import KEY_COLUMN
from timeline.context import TableContext
from timeline.errors import InvalidInputError, UnsupportedTableError
from timeline.model.file_names import FileSlice
from timeline.snapshot import Snapshot

__all__ = [
    "forms_of",
    "keys_as_stored",
    "refuse_other_forms",
    "stored_forms",
]

_SAMPLED = 4  # file groups, of the oldest and of the newest each
_REMEMBERED_MAX = 100_000  # files

_BOTH = frozenset({False, True})


def keys_as_stored(context: TableContext, snapshot: Snapshot, keys: KeySpec) -> KeySpec:
    """
    Return the key spec with the form that stored keys have; other key specs stay unchanged.

    Outside: once per opened table 1 list a partition and at most 8 reads of base files, if the key
    generator is complex and has one field.

    Raises:
        UnsupportedTableError: Stored keys have both forms (``mixed_key_encoding``).
        InvalidInputError: The option names the other form (``setting_against_table``).
    """
    if not keys.has_two_forms:
        return keys
    forms = stored_forms(context, snapshot, keys)
    if forms == _BOTH:
        raise _mixed(keys, "")
    if not forms:
        return keys
    (prefixed,) = forms
    asked = keys.prefixes_single_key
    if asked is not None and asked != prefixed and keys.table_version < 9:
        raise InvalidInputError(
            "the table's record keys are stored in the other form, and updates would not find "
            f"them; set hoodie.write.complex.keygen.new.encoding={str(not prefixed).lower()}, or "
            f"leave it out: the keys are stored as {_shape(keys, prefixed=prefixed)}",
            kind="setting_against_table",
            key="hoodie.write.complex.keygen.new.encoding",
            value=str(not asked).lower(),
        )
    return replace(keys, stored_prefix=prefixed)


def stored_forms(context: TableContext, snapshot: Snapshot, keys: KeySpec) -> frozenset[bool]:
    """
    Return which forms the stored keys have, from a sample of file groups.

    Returns:
        True if some keys have the field's name as prefix, False if some have not. Empty without rows.

    Outside: as ``keys_as_stored``.
    """
    known = context.key_forms.get("")
    if known:
        return known
    slices = view_of(context, snapshot).latest_slices(None)
    listed = sorted(slices, key=lambda one: one.base_instant_time)
    chosen = {one.file_group: one for one in (*listed[:_SAMPLED], *listed[-_SAMPLED:])}
    found: frozenset[bool] = frozenset()
    for one in chosen.values():
        found |= _read_forms(context, snapshot, one, keys, whole=False)
    context.key_forms[""] = found
    return found


def refuse_other_forms(
    context: TableContext, snapshot: Snapshot, slices: Iterable[FileSlice], keys: KeySpec
) -> None:
    """
    Refuse file groups with keys in another form, because lookups would miss these keys.

    Outside: for each new file its footer, and its keys if the footer is not enough.

    Raises:
        UnsupportedTableError: ``mixed_key_encoding``.
    """
    if not keys.has_two_forms:
        return
    for one in slices:
        if forms_of(context, snapshot, one, keys) - {keys.prefixes_keys}:
            context.key_forms.pop("", None)  # a repair may have changed them: sample again
            raise _mixed(keys, str(one.file_group))


def forms_of(
    context: TableContext, snapshot: Snapshot, one: FileSlice, keys: KeySpec
) -> frozenset[bool]:
    """Return the forms of all keys of a slice's base file, or of its logs if it has none."""
    path = one.base_file.path if one.base_file is not None else one.log_files[-1].path
    known = context.key_forms.get(path)
    if known is not None:
        return known
    told = None
    if one.base_file is not None:
        told = _told_by(read_footer(context.world.storage, path), keys)
    found = told if told is not None else _read_forms(context, snapshot, one, keys, whole=True)
    if len(context.key_forms) > _REMEMBERED_MAX:
        context.key_forms.clear()
    context.key_forms[path] = found
    return found


def _told_by(footer: Footer, keys: KeySpec) -> frozenset[bool] | None:
    """Return the forms by the least and greatest key; None if keys of both forms are possible."""
    if footer.rows == 0:
        return frozenset()
    least, greatest, prefix = footer.key_min, footer.key_max, keys.single_prefix
    if least is None or greatest is None:
        return None
    if least.startswith(prefix) and greatest.startswith(prefix) and keys.prefixes_keys:
        return frozenset({True})
    below = java_order(greatest) < java_order(prefix)
    above = java_order(least) > java_order(prefix) and not least.startswith(prefix)
    return frozenset({False}) if below or above else None


def _read_forms(
    context: TableContext, snapshot: Snapshot, one: FileSlice, keys: KeySpec, *, whole: bool
) -> frozenset[bool]:
    """Return the forms by keys and values of a whole slice, or of its first rows."""
    (field,) = keys.record_key_fields
    columns = (KEY_COLUMN, field.partition(".")[0])
    read = plan_scan(context, snapshot, [one], columns=columns).read
    found: frozenset[bool] = frozenset()
    for batch in read_slice(context.world.storage, context.world.events, one, read):
        if batch.num_rows:
            found |= _forms(pa.Table.from_batches([batch]), field, keys.single_prefix)
            if not whole or found == _BOTH:
                break
    return found


def _forms(rows: pa.Table, field: str, prefix: str) -> frozenset[bool]:
    stored = pc.cast(rows.column(KEY_COLUMN), pa.string())
    prefixed = pc.starts_with(stored, prefix)
    column = plain_column(rows, field)
    if column is not None and (
        pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    ):
        # A bare value may itself start with the prefix.
        bare = pc.equal(stored, java_texts(column, field, "unsupported_key_type"))
        prefixed = pc.and_(prefixed, pc.invert(pc.fill_null(bare, False)))
    return frozenset(pc.unique(prefixed).drop_null().to_pylist())


def _shape(keys: KeySpec, *, prefixed: bool) -> str:
    return f"{keys.single_prefix}value" if prefixed else "the bare value"


def _mixed(keys: KeySpec, where: str) -> UnsupportedTableError:
    fields: Sequence[str] = keys.record_key_fields
    return UnsupportedTableError(
        "some stored record keys are the bare value and others have the field's name before it, "
        "as releases of Hudi differ in this for a complex key of one field; a write would miss "
        "rows, so rewrite the keys first: 'hoodoo table repair-keys TABLE'; "
        f"field={fields[0]}{' first in ' + where if where else ''}",
        kind="mixed_key_encoding",
        feature="keys of two forms",
        column=fields[0],
    )
