"""
Merge the layers of a file group of the metadata table, as Java's ``HoodieMetadataPayload`` does.

The layers are the base file, then the blocks of the logs in their order. A deleted key removes all
earlier records of the key. The other records of a key merge by their kind:

- Files: the maps are united. A file that is listed twice has the greater size. A tombstone removes a
  listed file and itself; one without a listed file stays, and readers ignore it.
- Statistics: a tight or deleted record replaces the earlier ones, and any record replaces a deleted
  one. Else the bounds are widened and the counts added, so the order of these records is irrelevant.
- The other kinds: the newest record of a key counts.

Java merges the logs first, and then with the base file. The results are the same, unless a key or a
file is deleted and written again above one base file. Java then lists files that are deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.metadata_table.records import BOUND, COLUMN_STATS, FILES, ValueType
from filegroups.schema.arrow_columns import distinct_codes, one_array

Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_SUMS: Final = ("value_count", "null_count", "total_size", "total_uncompressed_size")
_BOUNDS: Final = (("min", False), ("max", True))
# The type of a column may have changed between two records. The type that holds all numbers of a
# group depends on the highest of these levels among them.
_NUMBERS: Final = ("IntWrapper", "LongWrapper", "FloatWrapper", "DoubleWrapper")
_WIDER: Final = {"LongWrapper": (1,), "DoubleWrapper": (2, 3)}
_SIGN: Final = np.uint64(1 << 63)


def merge_layers(layers: Sequence[pa.Table | pa.Array], shape: pa.Schema) -> pa.Table:
    """
    Merge the layers of a file group, or of some keys of it.

    Args:
        layers: Oldest first. A table has records of ``shape``; an array has deleted keys.
        shape: One of the schemas of ``records``.

    Shapes: -> a table of ``shape`` by ascending bytes of the key; one row for each key, or for each
    name in the map of a key. Deleted records are left out. Tombstones of files that are not listed
    stay: ``live_files`` removes them.
    """
    rows = pa.concat_tables(
        [shape.empty_table(), *(one for one in layers if isinstance(one, pa.Table))]
    )
    codes, places, keys = _numbered(layers)
    last_deleted = np.full(len(keys), -1, np.int64)
    deleted = places < 0
    np.maximum.at(last_deleted, codes[deleted], np.flatnonzero(deleted))
    kept = ~deleted & (np.arange(len(codes)) > last_deleted[codes])
    # The order of the result: by key, then as the layers.
    rank = np.empty(len(keys), np.int64)
    rank[np.asarray(pc.sort_indices(pc.cast(keys, pa.binary())))] = np.arange(len(keys))
    codes, places = rank[codes[kept]], places[kept]
    if shape == FILES:
        return _files(rows, codes, places)
    order = np.argsort(codes, kind="stable")
    codes, places = codes[order], places[order]
    last = np.flatnonzero(np.append(codes[1:] != codes[:-1], True)[: len(codes)])
    if shape == COLUMN_STATS and len(last) < len(codes):
        found = _statistics(rows.take(pa.array(places)), codes, last)
    else:
        found = rows.take(pa.array(places[last]))
    if "is_deleted" in shape.names:
        found = found.filter(pc.invert(found.column("is_deleted")))
    return found.combine_chunks()


def merge_logs(
    layers: Sequence[pa.Table | pa.Array], shape: pa.Schema, base: pa.Table
) -> tuple[pa.Table, pa.Array]:
    """
    Merge the layers of logs into one that has the same effect on the layers below.

    A file that is added and deleted between two compactions leaves no tombstone, because a
    compaction would keep it for ever. So those of files depend on the base file.

    Args:
        layers: Of the logs, as of ``merge_layers``.
        shape: One of the schemas of ``records``.
        base: The records of the base file below; read for ``FILES`` only.

    Shapes: -> records of ``shape``; deleted keys (k,), distinct. The deletes come first: a key may be
    in both.
    """
    deleted = [pc.cast(one, pa.string()) for one in layers if isinstance(one, pa.Array)]
    if shape != FILES:
        marked = [
            one for one in layers if isinstance(one, pa.Table) and "is_deleted" in shape.names
        ]
        deleted += [
            one_array(rows.column("key").filter(rows.column("is_deleted"))) for rows in marked
        ]
        merged = merge_layers(layers, shape)
        if shape == COLUMN_STATS:
            # The earlier ones of a tight record do not count, also if a later one widened it.
            widened = merged.column("key").filter(pc.invert(merged.column("is_tight")))
            tight = [
                one_array(rows.column("key").filter(rows.column("is_tight"))) for rows in marked
            ]
            deleted += [keys.filter(pc.is_in(keys, value_set=one_array(widened))) for keys in tight]
        return merged, _distinct(deleted)
    now = merge_layers([base, *layers], shape)
    mine, below = (
        pc.binary_join_element_wise(
            one_array(one.column("key")), one_array(one.column("name")), "\0"
        )
        for one in (now, base)
    )
    found = base.take(pc.index_in(mine, value_set=below))
    size, was = now.column("size"), found.column("size")
    alive = pc.invert(now.column("is_deleted"))
    was_alive = pc.fill_null(pc.invert(found.column("is_deleted")), False)
    kept = pc.and_(pc.equal(alive, was_alive), pc.fill_null(pc.equal(size, was), False))
    # The greater size of a file counts, so a lesser one needs the key's delete.
    lesser = pc.and_(pc.and_(alive, was_alive), pc.fill_null(pc.less(size, was), False))
    reset = _distinct([*deleted, one_array(now.column("key").filter(lesser))])
    again = pc.is_in(now.column("key"), value_set=reset)
    gone = live_files(base.filter(pc.invert(pc.is_in(below, value_set=mine))))
    gone = gone.filter(pc.invert(pc.is_in(gone.column("key"), value_set=reset)))
    tombs = pa.Table.from_arrays(
        [
            *(gone.column(name) for name in ("key", "name")),
            pa.repeat(pa.scalar(0, pa.int64()), gone.num_rows),
            pa.repeat(pa.scalar(True), gone.num_rows),
        ],
        schema=FILES,
    )
    return pa.concat_tables([now.filter(pc.or_(pc.invert(kept), again)), tombs]), reset


def _distinct(keys: Sequence[pa.Array]) -> pa.Array:
    return pc.unique(pa.concat_arrays([pa.array([], pa.string()), *keys]))


def live_files(rows: pa.Table) -> pa.Table:
    """Return the rows of ``FILES`` without tombstones."""
    return rows.filter(pc.invert(rows.column("is_deleted")))


def _numbered(
    layers: Sequence[pa.Table | pa.Array],
) -> tuple[Integers, Integers, pa.Array]:
    """
    Number the keys of all layers.

    Shapes: -> codes (n,) of the keys; places (n,) of the records in the joined tables, -1 for a
    deleted key; the keys by code.
    """
    texts: list[pa.Array] = []
    places: list[Integers] = [np.zeros(0, np.int64)]
    records = 0
    for one in layers:
        if isinstance(one, pa.Table):
            texts += one.column("key").chunks
            places.append(np.arange(records, records + one.num_rows))
            records += one.num_rows
        else:
            texts.append(pc.cast(one, pa.string()))
            places.append(np.full(len(one), -1, np.int64))
    codes, keys = distinct_codes(pa.chunked_array(texts, pa.string()))
    return codes, np.concatenate(places), keys


def _firsts(groups: Integers) -> npt.NDArray[np.intp]:
    """Return where each run of equal numbers begins. Shapes: ascending (n,) -> (m,)."""
    if not len(groups):
        return np.zeros(0, np.intp)
    return np.flatnonzero(np.append(True, groups[1:] != groups[:-1]))


def _newest(places: Mask, starts: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
    """Return the last marked position of each run, -1 without one."""
    marked = np.where(places, np.arange(len(places)), -1)
    found: npt.NDArray[np.int64] = np.maximum.reduceat(marked, starts)
    return found


# ---- Files


def _files(rows: pa.Table, codes: Integers, places: Integers) -> pa.Table:
    rows = rows.take(pa.array(places)).combine_chunks()
    if not rows.num_rows:
        return rows
    name_codes, names = distinct_codes(rows.column("name"))
    pairs = codes * len(names) + name_codes
    order = np.argsort(pairs, kind="stable")
    pairs = pairs[order]
    starts = _firsts(pairs)
    lengths = np.diff(np.append(starts, len(pairs)))
    tombs = np.asarray(rows.column("is_deleted")).astype(np.bool_)[order]
    sizes = np.asarray(rows.column("size"))[order]
    last = np.append(starts[1:], len(pairs)) - 1
    newest_tomb, newest_live = _newest(tombs, starts), _newest(~tombs, starts)
    # The run of live entries at the end decides the size.
    counted = np.arange(len(pairs)) > np.repeat(newest_tomb, lengths)
    greatest = np.maximum.reduceat(np.where(counted, sizes, 0), starts)
    is_gone = tombs[last] & (newest_live >= starts) & (last - newest_live == 1)
    at = np.flatnonzero(~is_gone)
    found = rows.take(pa.array(order[last[at]]))
    size = pa.array(greatest[at], pa.int64())
    return found.set_column(2, FILES.field("size"), size).combine_chunks()


# ---- Statistics


def _statistics(rows: pa.Table, codes: Integers, last: npt.NDArray[np.intp]) -> pa.Table:
    """Merge statistics. Shapes: rows (n), codes ascending (n,), last row of each key (m,)."""
    deleted = np.asarray(rows.column("is_deleted")).astype(np.bool_)
    resets = deleted | np.asarray(rows.column("is_tight")).astype(np.bool_)
    firsts = _firsts(codes)
    resets[firsts] = True
    resets[1:] |= deleted[:-1]
    since = np.repeat(_newest(resets, firsts), np.diff(np.append(firsts, len(codes))))
    counted = np.flatnonzero(np.arange(len(codes)) >= since)
    found = rows.take(pa.array(last))
    groups = np.unique(codes[counted], return_inverse=True)[1]
    several = np.bincount(groups) > 1
    if not several.any():
        return found
    # Only the keys with several records are computed.
    counted = counted[several[groups]]
    groups = np.unique(codes[counted], return_inverse=True)[1].astype(np.int64)
    merged = _widened(rows.take(pa.array(counted)), groups, found.filter(pa.array(several)))
    at = np.arange(len(last))
    at[several] = len(last) + np.arange(int(several.sum()))
    return pa.concat_tables([found, merged]).take(pa.array(at))


def _widened(rows: pa.Table, groups: Integers, newest: pa.Table) -> pa.Table:
    """Return the newest record of each group with the bounds and counts of all."""
    starts = _firsts(groups)
    columns = {name: newest.column(name) for name in newest.column_names}
    for name in _SUMS:
        column = one_array(rows.column(name))
        sums = np.add.reduceat(np.asarray(pc.fill_null(column, 0)), starts)
        unknown = np.logical_or.reduceat(np.asarray(pc.is_null(column)).astype(np.bool_), starts)
        columns[name] = pa.array(sums, pa.int64(), mask=unknown)
    decimals = pc.equal(rows.column("value_type"), ValueType.DECIMAL)
    for name, is_max in _BOUNDS:
        values = one_array(rows.column(name))
        columns[name] = _bounds(values, groups, one_array(decimals), is_max=is_max)
    return pa.table(columns, schema=COLUMN_STATS)


def _bounds(
    values: pa.StructArray, groups: Integers, decimals: pa.Array, *, is_max: bool
) -> pa.StructArray:
    """Return the least or greatest bound of each group; null bounds do not count."""
    count = int(groups[-1]) + 1
    children = {one.name: pc.struct_field(values, one.name) for one in BOUND}
    present = [
        np.bincount(groups, np.asarray(pc.is_valid(one)), count) > 0 for one in children.values()
    ]
    mixed = np.sum(present, axis=0) > 1
    if mixed.any():
        children = _promoted(children, groups, mixed, is_max=is_max)
    found = [_extreme(one, groups, count, decimals, is_max=is_max) for one in children.values()]
    held = np.sum([np.asarray(pc.is_valid(one)) for one in found], axis=0)
    # Bounds of types that have no common type are no bound.
    return pa.StructArray.from_arrays(
        [pc.if_else(pa.array(held == 1), one, None) for one in found],
        fields=list(BOUND),
        mask=pa.array(held != 1),
    )


def _promoted(
    children: dict[str, pa.Array], groups: Integers, mixed: Mask, *, is_max: bool
) -> dict[str, pa.Array]:
    """Convert the numbers of a group with bounds of several types to the type that holds all."""
    found = dict(children)
    tops = np.full(len(mixed), -1, np.int64)
    for level, name in enumerate(_NUMBERS):
        np.maximum.at(tops, groups[np.asarray(pc.is_valid(children[name])).astype(np.bool_)], level)
    tops[~mixed] = -1
    for wide, levels in _WIDER.items():
        moves = np.isin(tops[groups], levels)
        for name in _NUMBERS:
            moved = np.asarray(pc.is_valid(found[name])).astype(np.bool_) & moves
            if name == wide or not moved.any():
                continue
            numbers = pc.cast(found[name], found[wide].type, safe=False)
            if (name, wide) == ("LongWrapper", "DoubleWrapper"):  # not exact: widen the bound
                plain = np.asarray(pc.fill_null(numbers, 0.0))
                numbers = pa.array(np.nextafter(plain, np.inf if is_max else -np.inf))
            found[wide] = pc.if_else(pa.array(moved), numbers, found[wide])
            found[name] = pc.if_else(pa.array(moved), None, found[name])
    return found


def _extreme(
    values: pa.Array, groups: Integers, count: int, decimals: pa.Array, *, is_max: bool
) -> pa.Array:
    """Return the least or greatest value of each group. Shapes: (n,), (n,) -> (count,)."""
    held = np.flatnonzero(np.asarray(pc.is_valid(values)))
    if not len(held):
        return pa.nulls(count, values.type)
    place = pa.array(held)
    order = _order(values.take(place), decimals.take(place))
    # By group, then by value: the first of a group is the least, the last the greatest.
    ranked = held[order]
    ranked = ranked[np.argsort(groups[ranked], kind="stable")]
    starts = _firsts(groups[ranked])
    chosen = np.append(starts[1:], len(ranked)) - 1 if is_max else starts
    where = np.full(count, -1, np.int64)
    where[groups[ranked[starts]]] = ranked[chosen]
    return values.take(pa.array(where, mask=where < 0))


def _order(values: pa.Array, decimals: pa.Array) -> npt.NDArray[np.intp]:
    """Return the positions by ascending value; texts and bytes by their bytes, NaN at the end."""
    if pa.types.is_floating(values.type):
        numbers = np.asarray(values).astype(np.float64)
        bits = np.where(np.isnan(numbers), np.nan, numbers).view(np.uint64)
        flipped = np.where(bits & _SIGN != 0, ~bits, bits | _SIGN)  # -0.0 is below 0.0, as in Java
        return np.argsort(flipped, kind="stable")
    keys: Any = pc.cast(values, pa.binary()) if pa.types.is_string(values.type) else values
    if pa.types.is_boolean(keys.type):
        keys = pc.cast(keys, pa.int8())
    if pa.types.is_binary(keys.type) and pc.any(decimals).as_py():
        keys = pc.if_else(pc.fill_null(decimals, False), _by_number(keys), keys)
    return np.asarray(pc.sort_indices(keys))


def _by_number(values: pa.Array) -> pa.Array:
    """Return big-endian two's complement numbers as bytes that sort like the numbers."""
    lengths = np.asarray(pc.binary_length(values)).astype(np.int64)
    width = int(lengths.max())
    joined = np.frombuffer(b"".join(values.to_pylist()), np.uint8)
    filled = np.arange(width) >= width - lengths[:, None]
    padded = np.zeros((len(values), width), np.uint8)
    padded[filled] = joined
    ends = np.cumsum(lengths)
    first = np.zeros(len(values), np.uint8)
    first[lengths > 0] = joined[(ends - lengths)[lengths > 0]]
    padded[~filled & (first >= 0x80)[:, None]] = 0xFF
    padded[:, 0] ^= 0x80
    buffers = [None, pa.py_buffer(np.ascontiguousarray(padded))]
    fixed = pa.Array.from_buffers(pa.binary(width), len(values), buffers)
    return pc.cast(fixed, pa.binary())
