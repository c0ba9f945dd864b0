"""
The form of a table's stored record keys and folders, which no property of it records.

Releases and paths of Java Hudi write one value in several forms. The writer reads the form from
rows and folders and uses it, so that no record gets a second key and no row a second folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from filegroups.files.parquet import Footer, read_footer
from filegroups.files.slice_reader import read_slice
from filegroups.keys.keys import (
    DEFAULT_PARTITION,
    DroppedPartitionColumns,
    KeySpec,
    field_type,
    is_moment,
    java_order,
    plain_column,
    record_keys,
    refuse_colons,
)
from filegroups.keys.timestamp_keys import timestamp_texts
from filegroups.reading.scan import known_schema, plan_scan, view_of
from filegroups.schema.arrow_columns import one_array
from filegroups.schema.java_text import java_texts
from filegroups.schema.schema import KEY_COLUMN
from filegroups.settings.key_settings import KeySettings
from filegroups.writing.write_request import WriteRequest
from timeline.context import TableContext
from timeline.errors import CorruptTableError, InvalidInputError, UnsupportedTableError
from timeline.model.file_names import NUMBERS, TimestampForm, TimestampTexts, form_of
from timeline.model.file_slice import FileSlice
from timeline.snapshot import Snapshot

CONSISTENT_KEY = KeySettings.options["consistent_timestamps"].key


def with_stored_forms(
    context: TableContext, snapshot: Snapshot, plan: WriteRequest
) -> WriteRequest:
    """
    Return the request with keys and folders in the form of the stored rows.

    Outside and errors: as ``keys_as_stored``, ``key_moments_as_stored`` and ``folders_as_stored``.
    """
    keys = keys_as_stored(context, snapshot, plan.rules.keys)
    keys = key_moments_as_stored(context, snapshot, keys)
    return plan.with_keys(folders_as_stored(context, snapshot, keys))


# ---- The form of stored keys of a complex key generator with one field: ``id:7`` or ``7``
#
# Releases of Java Hudi differ in it (0.14.1 to 1.0.2 write the bare value), and no property of the
# table records it. The writer reads the form from keys in the files and uses it, so that no record
# gets a second key. It refuses files with both forms.

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
            "the table stores its record keys in the other form, so updates would not find them: "
            f"set hoodie.write.complex.keygen.new.encoding={str(not prefixed).lower()}, or omit "
            f"it: the keys are stored as {_shape(keys, prefixed=prefixed)}",
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
    known = context.key_encodings.get("")
    if known:
        return known
    found: frozenset[bool] = frozenset()
    for one in _sampled_slices(context, snapshot):
        found |= _read_forms(context, snapshot, one, keys, whole=False)
    context.key_encodings[""] = found
    return found


def _sampled_slices(context: TableContext, snapshot: Snapshot) -> Iterable[FileSlice]:
    """Return some of the oldest and of the newest file slices."""
    slices = view_of(context, snapshot).latest_slices(None)
    listed = sorted(slices, key=lambda one: one.base_instant_time)
    chosen = {one.file_group: one for one in (*listed[:_SAMPLED], *listed[-_SAMPLED:])}
    return chosen.values()


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
            context.key_encodings.pop("", None)  # a repair may have changed them: sample again
            raise _mixed(keys, str(one.file_group))


def forms_of(
    context: TableContext, snapshot: Snapshot, one: FileSlice, keys: KeySpec
) -> frozenset[bool]:
    """Return the forms of all keys of a slice's base file, or of its logs if it has none."""
    path = one.base_file.path if one.base_file is not None else one.log_files[-1].path
    known = context.key_encodings.get(path)
    if known is not None:
        return known
    by_footer = None
    if one.base_file is not None:
        by_footer = _forms_in_footer(read_footer(context.ports.storage, path), keys)
    found = (
        by_footer
        if by_footer is not None
        else _read_forms(context, snapshot, one, keys, whole=True)
    )
    if len(context.key_encodings) > _REMEMBERED_MAX:
        context.key_encodings.clear()
    context.key_encodings[path] = found
    return found


def _forms_in_footer(footer: Footer, keys: KeySpec) -> frozenset[bool] | None:
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
    for batch in read_slice(context.ports.storage, context.ports.events, one, read):
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
        "the stored record keys have two forms: the bare value, and the value after the field's "
        "name. Releases of Hudi differ in this. A write would miss rows: run 'hoodoo table "
        "repair-keys TABLE' first; "
        f"field={fields[0]}{' first in ' + where if where else ''}",
        kind="mixed_key_encoding",
        feature="keys of two forms",
        column=fields[0],
    )


# ---- How a table's partition folders show timestamps
#
# A row with a timestamp partition column belongs in the folder that its writer, perhaps Spark SQL,
# would create. Only the existing folders show the form, and only rows show the time zone.

_SAMPLED_FOLDERS = 8  # folders whose rows are read to find the zone
_SECONDS = len("2023-03-10 12:30:00")


def folders_as_stored(context: TableContext, snapshot: Snapshot, keys: KeySpec) -> KeySpec:
    """
    Return the key spec with the folder form of timestamps that the table has.

    Without folders they are numbers, the form of a DataFrame write of Java Hudi.

    Outside: if a partition column is a timestamp, until the zone is known: 1 stat a partition, 1
    list of each partition that is read, and the first rows of at most 8.

    Raises:
        UnsupportedTableError: The folders have several forms (``mixed_partition_paths``), or
            show the clock of a zone that is neither UTC nor this process's
            (``partition_zone``).
        InvalidInputError: The option names the other form (``setting_against_table``).
        SettingError: As ``refuse_colons``.
    """
    schema = known_schema(context, snapshot)
    if schema is None:
        return keys
    names = [
        name
        for name, is_time in zip(keys.partition_fields, keys.are_times, strict=True)
        if not is_time
        and name not in keys.untyped_fields
        and is_moment(field_type(schema.arrow, name))
    ]
    if not names:
        return keys
    known = context.timestamp_texts.get("")
    if known is None:
        known = _timestamp_texts(context, snapshot, keys, names)
        if known is None:
            if keys.shows_moments:  # no folders yet
                refuse_colons(keys, names[0])
            return replace(keys, moments=_asked_form(context, keys))
        if not known.or_zone:
            context.timestamp_texts[""] = known
    _refuse_other_form(keys, known, "folders")
    return replace(keys, moments=known)


def _asked_form(context: TableContext, keys: KeySpec) -> TimestampTexts:
    """Return the form of timestamps in a table without rows, by the option."""
    if not keys.shows_moments:
        return NUMBERS
    own = context.ports.zone()
    return TimestampTexts(TimestampForm.TIMESTAMP, "UTC" if own.fingerprint == "UTC" else own.name)


def key_moments_as_stored(context: TableContext, snapshot: Snapshot, keys: KeySpec) -> KeySpec:
    """
    Return the key spec with the form that timestamps have in the stored record keys.

    Without rows the option decides.

    Outside: once per opened table, if a key field is a timestamp with a zone: 1 list a partition,
    and the first rows of at most 8 file groups.

    Raises:
        UnsupportedTableError: The keys have several forms, or show the clock of a zone that is
            neither UTC nor this process's (``key_form``).
        InvalidInputError: The option names the other form (``setting_against_table``).
    """
    schema = None if keys.carried or not keys.stores_keys else known_schema(context, snapshot)
    if schema is None or not any(
        is_moment(field_type(schema.arrow, name)) for name in keys.record_key_fields
    ):
        return keys
    known = context.timestamp_texts.get("key")
    if known is None:
        known = _stored_key_form(context, snapshot, keys)
        if known is None:
            return replace(keys, key_moments=_asked_form(context, keys))  # no rows yet
        if not known.or_zone:
            context.timestamp_texts["key"] = known
    _refuse_other_form(keys, known, "record keys")
    return replace(keys, key_moments=known)


def _refuse_other_form(keys: KeySpec, known: TimestampTexts, where: str) -> None:
    """Refuse an option that contradicts the form of stored timestamps."""
    stored = {TimestampForm.NUMBER: False, TimestampForm.TIMESTAMP: True}.get(known.form)
    if keys.shows_moments is None or stored is None or stored == keys.shows_moments:
        return
    raise InvalidInputError(
        f"the table shows timestamps in its {where} as {'times' if stored else 'numbers'}, so "
        f"updates would not find their rows: omit the option {CONSISTENT_KEY}, or write to another "
        "table",
        kind="setting_against_table",
        key=CONSISTENT_KEY,
        value=str(keys.shows_moments).lower(),
    )


def _stored_key_form(
    context: TableContext, snapshot: Snapshot, keys: KeySpec
) -> TimestampTexts | None:
    """Return the form in a sample of the stored keys; None without rows."""
    shown = TimestampTexts(TimestampForm.TIMESTAMP, "UTC")
    own = _asked_form(context, replace(keys, shows_moments=True))
    matches = dict.fromkeys((NUMBERS, own, shown), 0)
    columns = dict.fromkeys(
        (KEY_COLUMN, *(name.partition(".")[0] for name in keys.record_key_fields))
    )
    rows_seen = 0
    for one in _sampled_slices(context, snapshot):
        read = plan_scan(context, snapshot, [one], columns=tuple(columns)).read
        batch = next(read_slice(context.ports.storage, context.ports.events, one, read), None)
        if batch is None or not batch.num_rows:
            continue
        rows = pa.Table.from_batches([batch])
        rows_seen += rows.num_rows
        stored = pc.cast(one_array(rows.column(KEY_COLUMN)), pa.string())
        for form in matches:
            made = record_keys(rows, replace(keys, key_moments=form))
            matches[form] += pc.sum(pc.equal(made, stored), min_count=0).as_py()
    if not rows_seen:
        return None
    most = max(matches.values())
    forms = [form for form, count in matches.items() if count == most]
    mixed = bool(matches.pop(NUMBERS)) and any(matches.values())
    if mixed or not most:
        raise _several_key_forms(own)
    return forms[0] if len(forms) == 1 else replace(forms[0], or_zone=forms[1].zone)


def _several_key_forms(own: TimestampTexts) -> UnsupportedTableError:
    return UnsupportedTableError(
        "the record keys show timestamps in several forms, or in a zone that is neither UTC nor "
        f"this process's zone, {own.zone}: set TZ to the zone of the table's other writers, or let "
        "them write it",
        kind="key_form",
        feature="keys of times in another zone",
    )


def _timestamp_texts(
    context: TableContext, snapshot: Snapshot, keys: KeySpec, names: list[str]
) -> TimestampTexts | None:
    folders = DroppedPartitionColumns(
        fields=keys.partition_fields,
        dropped=(),
        hive_style=keys.hive_style,
        url_encode=keys.url_encode,
    )
    forms: dict[TimestampForm, str] = {}
    samples: list[tuple[str, str, str]] = []
    for path in view_of(context, snapshot).partition_paths():
        for name, text in _values(folders, path, names):
            form = form_of(text)
            if form is None:
                raise _strange(path, name)
            forms.setdefault(form, path)
            samples.append((path, name, text))
    if len(forms) > 1:
        raise UnsupportedTableError(
            "the table's folders show times in several forms, because DataFrame writes and Spark "
            "SQL differ. A write would miss rows in the other form. End the writers and save "
            "the rows of one form with 'hoodoo read TABLE --filter TEXT --to FILE'. Delete those "
            "partitions with the engine that made them, then write the saved rows in the other "
            f"form: {sorted(forms.values())}",
            kind="mixed_partition_paths",
            feature="folders of times in several forms",
        )
    if not forms:
        return None
    (form,) = forms
    if form is TimestampForm.NUMBER:
        return NUMBERS
    return TimestampTexts(form, *_zones(context, snapshot, form, samples))


def _values(
    folders: DroppedPartitionColumns, path: str, names: Iterable[str]
) -> Iterable[tuple[str, str]]:
    try:
        values = folders.values(path)
    except CorruptTableError:
        raise _strange(path, ",".join(names)) from None
    return [(name, text) for name in names if (text := values[name]) and text != DEFAULT_PARTITION]


def _zones(
    context: TableContext,
    snapshot: Snapshot,
    form: TimestampForm,
    samples: list[tuple[str, str, str]],
) -> list[str]:
    """
    Return the zones in which rows of a partition have the timestamp that its folder shows.

    Two if no partition with rows distinguishes the own zone from UTC.
    """
    own = context.ports.zone()
    zones = ["UTC"] if own.fingerprint == "UTC" else [own.name, "UTC"]
    seen = 0
    for path, name, text in reversed(_telling(samples, zones)):  # the oldest are emptied first
        moment = _first_moment(context, snapshot, path, name)
        if moment is None:
            continue
        zones = [one for one in zones if _shows(moment, TimestampTexts(form, one), name, text)]
        seen += 1
        if not zones:
            raise UnsupportedTableError(
                "the table's folders show times in a zone that is neither UTC nor this process's "
                f"zone, {own.name}: set TZ to the zone of the table's other writers: "
                f"column={name!r} folder={path!r}",
                kind="partition_zone",
                feature="folders of times in another zone",
            )
        if seen == _SAMPLED_FOLDERS:
            break
    return zones


def _telling(samples: list[tuple[str, str, str]], zones: list[str]) -> list[tuple[str, str, str]]:
    """Return the samples whose text means different timestamps in the zones."""
    if len(zones) == 1:
        return samples
    clocks = pa.array([text.replace("%3A", ":")[:_SECONDS] for _, _, text in samples])
    moments = pc.strptime(clocks, format="%Y-%m-%d %H:%M:%S", unit="s", error_is_null=True)
    moments = moments.cast(pa.timestamp("s", "UTC"))
    name = samples[0][1]
    try:
        shown = [
            timestamp_texts(moments, TimestampTexts(TimestampForm.SQL, one), name) for one in zones
        ]
    except InvalidInputError:  # a zone that only the operating system knows
        return samples
    same = pc.fill_null(pc.equal(*shown), False).to_pylist()
    return [one for one, alike in zip(samples, same, strict=True) if not alike]


def _shows(moment: pa.Array, how: TimestampTexts, name: str, text: str) -> bool:
    try:
        (shown,) = timestamp_texts(moment, how, name).to_pylist()
    except InvalidInputError:  # a zone that only the operating system knows
        return False
    return bool(shown.replace("%3A", ":") == text.replace("%3A", ":"))


def _first_moment(
    context: TableContext, snapshot: Snapshot, path: str, name: str
) -> pa.Array | None:
    for one in view_of(context, snapshot).latest_slices([path]):
        read = plan_scan(context, snapshot, [one], columns=(name,)).read
        for batch in read_slice(context.ports.storage, context.ports.events, one, read):
            values = batch.column(name).drop_null()
            if len(values):
                return values.slice(0, 1)
    return None


def _strange(path: str, name: str) -> UnsupportedTableError:
    return UnsupportedTableError(
        "a folder shows the time of its partition column in an unknown form. End the writers and "
        "save its rows with 'hoodoo read TABLE --filter TEXT --to FILE'. Delete the partition "
        f"with the engine that made it, then write the saved rows: column={name!r} folder={path!r}",
        kind="mixed_partition_paths",
        feature="folders of moments",
    )
