"""
Detect how a table's partition folders show timestamps.

A row with a timestamp partition column belongs in the folder that its writer, perhaps Spark SQL,
would create. Only the existing folders show the form, and only rows show the time zone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from filegroups.files.slice_reader import read_slice
from filegroups.keys.dropped_partition_columns import DroppedPartitionColumns
from filegroups.keys.keys import DEFAULT_PARTITION, KeySpec
from filegroups.reading.read import known_schema, plan_scan, view_of
from timeline.context import TableContext
from timeline.errors import CorruptTableError, InvalidInputError, UnsupportedTableError
from timeline.rules.instant_times import (
    NUMBERS,
    TimestampForm,
    TimestampTexts,
    form_of,
    timestamp_texts,
)
from timeline.snapshot import Snapshot

__all__ = ["folders_as_stored"]

_SAMPLED = 8  # folders whose rows are read to find the zone
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
    """
    schema = known_schema(context, snapshot)
    if schema is None:
        return keys
    names = [
        name
        for name, is_time in zip(keys.partition_fields, keys.are_times, strict=True)
        if not is_time and name not in keys.untyped_fields and _is_moment(schema.arrow, name)
    ]
    if not names:
        return keys
    known = context.moment_texts.get("")
    if known is None:
        known = _told(context, snapshot, keys, names)
        if known is None:
            return keys  # no folders yet
        if not known.or_zone:
            context.moment_texts[""] = known
    return replace(keys, moments=known)


def _is_moment(schema: pa.Schema, name: str) -> bool:
    """Return whether a column is a timestamp with a zone; others are written as numbers."""
    place = schema.get_field_index(name)
    kind = schema.field(place).type if place >= 0 else None
    return kind is not None and pa.types.is_timestamp(kind) and kind.tz is not None


def _told(
    context: TableContext, snapshot: Snapshot, keys: KeySpec, names: list[str]
) -> TimestampTexts | None:
    folders = DroppedPartitionColumns(
        fields=keys.partition_fields,
        left_out=(),
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
            "the table's folders show moments in several forms, as a DataFrame's writes and those "
            "of Spark SQL differ, and a row would be missed in the other; rewrite the partitions "
            f"of one form by the other's writer first: {sorted(forms.values())}",
            kind="mixed_partition_paths",
            feature="folders of moments in several forms",
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
    own = context.world.zone()
    zones = ["UTC"] if own.agreed == "UTC" else [own.name, "UTC"]
    seen = 0
    for path, name, text in reversed(_telling(samples, zones)):  # the oldest are emptied first
        moment = _first_moment(context, snapshot, path, name)
        if moment is None:
            continue
        zones = [one for one in zones if _shows(moment, TimestampTexts(form, one), name, text)]
        seen += 1
        if not zones:
            raise UnsupportedTableError(
                "the table's folders show moments on the clock of another zone than UTC and this "
                f"process's, {own.name}; run this with TZ set to the zone of the table's other "
                f"writers: column={name!r} folder={path!r}",
                kind="partition_zone",
                feature="folders of moments in another zone",
            )
        if seen == _SAMPLED:
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
        for batch in read_slice(context.world.storage, context.world.events, one, read):
            values = batch.column(name).drop_null()
            if len(values):
                return values.slice(0, 1)
    return None


def _strange(path: str, name: str) -> UnsupportedTableError:
    return UnsupportedTableError(
        "a folder does not show the moment of its partition column in a form that is known; let "
        "the writer that made it rewrite the partition (insert_overwrite) into one that is: "
        f"column={name!r} folder={path!r}",
        kind="mixed_partition_paths",
        feature="folders of moments",
    )
