"""Partition pruning: choose the partitions that can contain rows matching a filter."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from functools import reduce
from itertools import islice, product
from operator import and_
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from filegroups.keys.generators import KeyGenerator, TimestampKeys
from filegroups.keys.keys import DEFAULT_PARTITION
from filegroups.keys.timestamp_keys import span_of_folder
from filegroups.schema.schema import PARTITION_COLUMN
from filegroups.settings.time_settings import stored_times_of
from timeline.model.table_config import TableConfig

#
# A partition path gives the values of its rows' partition columns. The path becomes a guarantee, an
# expression that is true for each row of the partition. Arrow's datasets decide whether the filter
# can be true under it. A path without certain values gives no guarantee, and its partition is kept: a
# pruned read returns the rows of an unpruned one.
#
# Several values may share a path (null and the empty text), so a path can have several guarantees.
# The partition is kept if the filter can be true under one of them.

_DEFAULTS: Final = (DEFAULT_PARTITION, "default")  # the second: Hudi below 0.12
_GUARANTEES_MAX: Final = 64  # of one path
_GROUP: Final = 50  # paths that are checked together
_OF_PATH: Final = -1  # the meta column, in place of a field's number
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
_DATE: Final = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_CLOCK: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?")
_GREGORIAN: Final = date(1582, 10, 15)  # Spark's writers use another calendar for earlier days
_ZONE_MS: Final = 18 * 3_600_000  # the greatest offset of a zone
_DAY_MS: Final = 86_400_000
_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


class _Range(NamedTuple):
    """Values from ``low`` to ``high``; stored numbers for dates and timestamps."""

    low: Any
    high: Any
    closed: bool = True


#: Maps a field's number to its values, None for null. One of the maps holds for each row.
_Guarantees: TypeAlias = Sequence[Mapping[int, _Range | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionField:
    """
    One partition field and how its values become folders.

    Args:
        name: The column; a dot leads into a struct.
        type: Type of the column as it is read.
        times: How times become folders, if the key generator makes folders from times.
        from_folder: Whether files leave out the column, so that reads return the folder's text.
        folders: The only folders that can contain matching rows, without ``name=``; None for any.
    """

    name: str
    type: pa.DataType
    times: TimestampKeys | None = None
    from_folder: bool = False
    folders: frozenset[str] | None = None

    @property
    def column(self) -> pc.Expression:
        """The column in an expression."""
        return pc.field(*self.name.split("."))


_PATH: Final = PartitionField(name=PARTITION_COLUMN, type=pa.string())


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPruner:
    """
    Chooses the partition paths whose rows may match a filter.

    Args:
        condition: The filter; must bind to ``schema``.
        schema: Every column that the filter may name.
        named: The partition columns that it names, including the meta column of the path.
        fields: Every partition field in the order of the path; None if a field's folders give no
            values.
        names: Names of all partition fields, as in hive-style folders.
        hive_style: Whether folders are named ``field=value``.
        url_encode: Whether values are percent-encoded in folder names.
    """

    condition: pc.Expression
    schema: pa.Schema
    named: frozenset[str]
    fields: tuple[PartitionField | None, ...]
    names: tuple[str, ...]
    hive_style: bool = False
    url_encode: bool = False

    def partitions(self, paths: Sequence[str]) -> list[str]:
        """Return the partition paths that may have matching rows, in their order."""
        return self._chosen(paths, below=False)

    def folders(self, paths: Sequence[str]) -> list[str]:
        """Return the folders that may have matching rows, in themselves or in partitions below."""
        return self._chosen(paths, below=True)

    def exact_values(self, path: str) -> tuple[Any, ...] | None:
        """Return the only values of all fields in a partition; None if a field can have others."""
        guarantees = self._guarantees_of(path, below=False)
        if guarantees is None or len(guarantees) != 1 or len(guarantees[0]) != len(self.fields):
            return None
        values = [guarantees[0][number] for number in range(len(self.fields))]
        if any(one is not None and (one.low != one.high or not one.closed) for one in values):
            return None
        return tuple(None if one is None else one.low for one in values)

    def _chosen(self, paths: Sequence[str], *, below: bool) -> list[str]:
        guarantees = [self._guarantees_of(path, below=below) for path in paths]
        known = (number for number, some in enumerate(guarantees) if some is not None)
        asked = sorted(known, key=paths.__getitem__)
        left: list[int] = []
        try:
            # Neighbours have similar values: one range over a group excludes most groups at once.
            groups = [asked[start : start + _GROUP] for start in range(0, len(asked), _GROUP)]
            kept = self._possible(
                [_merged([guarantees[number] or () for number in one]) for one in groups]
            )
            left = [number for group in kept for number in groups[group]]
            kept = self._possible([guarantees[number] or () for number in left])
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            return list(paths)  # a value that fails here fails again when rows are read
        chosen = {left[number] for number in kept}
        return [
            path
            for number, (path, some) in enumerate(zip(paths, guarantees, strict=True))
            if some is None or number in chosen
        ]

    def _possible(self, guarantees: Sequence[_Guarantees | None]) -> list[int]:
        made = [some if some is None else list(map(self._expression, some)) for some in guarantees]
        return guarantees_that_allow(self.condition, self.schema, made)

    def _expression(self, guarantee: Mapping[int, _Range | None]) -> pc.Expression:
        sides = []
        for number, values in guarantee.items():
            one = _PATH if number == _OF_PATH else self.fields[number]
            if one is None:
                continue
            column = one.column
            if values is None:
                sides.append(column.is_null())
                continue
            low, high = _scalar(values.low, one.type), _scalar(values.high, one.type)
            if values.low == values.high:
                sides.append(column == low)
            else:
                sides += [column >= low, column <= high if values.closed else column < high]
        return reduce(and_, sides)

    def _guarantees_of(self, path: str, *, below: bool) -> _Guarantees | None:
        """Return a path's guarantees, one of which holds; None if unknown, empty for no row."""
        if path == "":
            return None
        named: dict[int, list[_Range | None]] = {}
        if PARTITION_COLUMN in self.named:
            named[_OF_PATH] = [_prefixed(path) if below else _Range(path, path)]
        if not named and (text := self._plain_text(path)) is not None:
            exact = {0: _Range(text, text)}
            return [exact, {0: _prefixed(text)}] if below else [exact]
        levels = path.split("/")
        ways = list(islice(self._splits(levels, 0, 0, below=below), _GUARANTEES_MAX))
        if not ways or len(ways) == _GUARANTEES_MAX:
            ways = [[]]  # the path does not have the form that the properties describe
        found: list[Mapping[int, _Range | None]] = []
        for way in ways:
            sides = dict(named)
            for number, own, more in way:
                values = self._of_field(number, own, more=more)
                if values is not None:
                    sides[number] = values
            if not sides:
                return None
            if len(sides) == 1:
                ((number, values),) = sides.items()
                found.extend({number: each} for each in values)
            else:
                every = product(*sides.values())
                found.extend(dict(zip(sides, some, strict=True)) for some in every)
            if len(found) >= _GUARANTEES_MAX:
                return None
        return found

    def _plain_text(self, path: str) -> str | None:
        """Return the text value of a one-level path in a table with one text field, else None."""
        one = self.fields[0] if len(self.fields) == 1 else None
        if one is None or one.name not in self.named or path in _DEFAULTS:
            return None
        if "/" in path or "%" in path or "=" in path:
            return None
        plain = not self.hive_style and not self.url_encode and not one.from_folder
        return path if plain and one.times is None and _is_text(one.type) else None

    def _splits(
        self, levels: Sequence[str], start: int, number: int, *, below: bool
    ) -> Iterator[list[tuple[int, tuple[str, ...], bool]]]:
        """
        Yield the ways to assign the levels of a path to the fields.

        Yields:
            For each field: its number, its levels, and whether more of its levels may follow.
        """
        if start == len(levels):
            if below or number == len(self.fields):
                yield []
            return
        if number == len(self.fields):
            return
        first = levels[start]
        if self.hive_style:
            name = f"{self.names[number]}="
            if not first.startswith(name):
                return
            first = first[len(name) :]
        fewest, most = self._levels_of(number)
        if start + 1 == len(levels) and number + 1 == len(self.fields) and fewest == 1:
            yield [(number, (first,), below and most > 1)]  # nearly always
            return
        for count in range(1, min(most, len(levels) - start) + 1):
            ends = start + count == len(levels)
            if count < fewest and not (below and ends):
                continue
            own = (first, *levels[start + 1 : start + count])
            more = below and ends and count < most
            for rest in self._splits(levels, start + count, number + 1, below=below):
                yield [(number, own, more), *rest]

    def _levels_of(self, number: int) -> tuple[int, int]:
        """Return the least and greatest number of levels that a field's values have."""
        one = self.fields[number]
        if one is None:
            return 1, 32
        if self.url_encode:
            return 1, 1
        if one.times is not None:
            count = one.times.levels
            return count, count
        return 1, 32 if _is_text(one.type) else 1

    def _of_field(
        self, number: int, levels: tuple[str, ...], *, more: bool
    ) -> list[_Range | None] | None:
        """Return the values that a field can have for these levels; None if none is certain."""
        one = self.fields[number]
        if one is None or one.name.partition(".")[0] not in self.named:
            return None
        text = levels[0] if len(levels) == 1 else "/".join(levels)
        if self.url_encode:
            text = unquote(text)
        if one.from_folder:
            nothing = text == DEFAULT_PARTITION
            values: list[_Range | None] | None = [None if nothing else _Range(text, text)]
        elif one.times is not None:
            return _times(one, text)
        elif not self.url_encode and not self.hive_style and text.startswith(f"{one.name}="):
            return None  # hive style, but the properties do not say so
        else:
            values = _values(one, text, percent=not self.url_encode)
        return [*values, _prefixed(text)] if values is not None and more else values


def guarantees_that_allow(
    condition: pc.Expression,
    schema: pa.Schema,
    guarantees: Sequence[Sequence[pc.Expression] | None],
) -> list[int]:
    """
    Return the numbers of the guarantees that allow the filter to be true.

    Args:
        condition: The filter; must bind to ``schema``.
        schema: Every column that filter and guarantees name.
        guarantees: One of the expressions of each is true for each row; None for no guarantee.
    """
    names: list[str] = []
    expressions: list[pc.Expression] = []
    sure = {number for number, some in enumerate(guarantees) if some is None}
    for number, some in enumerate(guarantees):
        names += [str(number)] * len(some or ())
        expressions += some or ()
    if not names:
        return sorted(sure)
    import pyarrow.dataset as ds  # slow to import, and most reads have no filter
    from pyarrow import fs

    dataset = ds.FileSystemDataset.from_paths(
        names,
        schema=schema,
        format=ds.ParquetFileFormat(),
        filesystem=fs.LocalFileSystem(),  # no file is opened
        partitions=expressions,
    )
    found = {int(one.path) for one in dataset.get_fragments(filter=condition)}
    return sorted(found | sure)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _prefixed(prefix: str) -> _Range:
    """Return the range of a text and its extensions after a slash; zero is the next character."""
    return _Range(prefix, f"{prefix}0", closed=False)


def _merged(guarantees: Sequence[_Guarantees]) -> _Guarantees | None:
    """Return a guarantee that holds for the rows of all; None if there is none."""
    every = [one for some in guarantees for one in some]
    if not every:
        return []
    numbers = set(every[0]).intersection(*every)
    if not numbers:
        return None
    merged: dict[int, list[_Range | None]] = {}
    for number in numbers:
        values = [one[number] for one in every]
        ranges = [each for each in values if each is not None]
        merged[number] = [None] if len(ranges) < len(values) else []
        if ranges:
            low = min(each.low for each in ranges)
            high = max(each.high for each in ranges)
            closed = any(each.closed for each in ranges if each.high == high)
            merged[number].append(_Range(low, high, closed=closed))
    return [dict(zip(merged, some, strict=True)) for some in product(*merged.values())]


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    """Return a value as a scalar of a column's type; dates and timestamps by stored number."""
    if pa.types.is_date32(kind):
        return pa.scalar(value, pa.int32()).cast(kind)
    if pa.types.is_timestamp(kind):
        return pa.scalar(value, pa.int64()).cast(kind)
    return pa.scalar(value, kind)


def _values(one: PartitionField, text: str, *, percent: bool) -> list[_Range | None] | None:
    """Return the values that have this text in a path (fmt 4.1); None if none is certain."""
    kind = one.type
    if _is_text(kind):
        texts = {text, unquote(text)} if percent and "%" in text else {text}
        if text in _DEFAULTS:
            return [None, *(_Range(each, each) for each in {"", *texts})]
        return [_Range(each, each) for each in texts]
    if text == DEFAULT_PARTITION:
        return [None]
    if pa.types.is_timestamp(kind) and (time_ms := _clock(unquote(text))) is not None:
        # Java Hudi writes the local time of its process; no property names the zone.
        per = _PER_SECOND[kind.unit]
        low, high = (time_ms - _ZONE_MS) * per // 1_000, (time_ms + 1_000 + _ZONE_MS) * per // 1_000
        return [_Range(low, high, closed=False)]
    try:
        values = [(value, _scalar(value, kind)) for value in _parsed(text, kind) or ()]
    except (pa.ArrowException, ValueError, OverflowError):
        return None
    return [_Range(value, value) for value, _ in values] or None


def _parsed(text: str, kind: pa.DataType) -> list[Any] | None:
    # Floats give no guarantee: no range of them covers NaN.
    types = pa.types
    if types.is_boolean(kind):
        return [text == "true"] if text in ("true", "false") else None
    if types.is_integer(kind):
        return [int(text)] if _INTEGER.fullmatch(text) else None
    if types.is_date32(kind):
        found = _DATE.fullmatch(text)
        try:
            day = date(*map(int, found.groups())) if found else None
        except ValueError:
            return None
        return None if day is None or day < _GREGORIAN else [(day - date(1970, 1, 1)).days]
    if types.is_decimal(kind):
        try:
            return [Decimal(text)]
        except InvalidOperation:
            return None
    if types.is_timestamp(kind) and _INTEGER.fullmatch(text):
        # Writers write the stored number, in milliseconds or microseconds (fmt 4.1).
        moments = [divmod(int(text) * _PER_SECOND[kind.unit], per) for per in (1_000, 1_000_000)]
        return None if any(rest for _, rest in moments) else [moment for moment, _ in moments]
    return None


def _clock(text: str) -> int | None:
    """Return a date and time as milliseconds since 1970, without fraction; None for others."""
    if not _CLOCK.fullmatch(text):
        return None
    try:
        seconds = datetime.fromisoformat(text[:19]).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
    return int(seconds) * 1_000 if text >= _GREGORIAN.isoformat() else None


def _times(one: PartitionField, text: str) -> list[_Range | None] | None:
    """Return the values whose times have this folder, or a folder below it."""
    if one.times is None or text == DEFAULT_PARTITION:
        return None
    if one.folders is not None:
        matching = any(each == text or each.startswith(f"{text}/") for each in one.folders)
        return None if matching else []
    unit = one.times.unit
    span = span_of_folder(text, one.times)
    if span is None or unit is None:
        return None
    low, high = span
    times, divisor = unit.value
    # Numbers become milliseconds by a division that rounds towards zero.
    number_low = (low - 1) * divisor // times if low <= 0 else -(-low // times) * divisor
    number_high = (high + 1) * divisor // times + 1 if high <= 0 else -(-high // times) * divisor
    found: list[_Range | None] = [_Range(number_low, number_high, closed=False)]
    kind = one.type
    if pa.types.is_timestamp(kind):  # the stored number or the time, depending on the writer
        per = _PER_SECOND[kind.unit]
        found.append(_Range((low - 1) * per // 1_000, (high + 1) * per // 1_000, closed=False))
    elif pa.types.is_date32(kind):
        found.append(_Range(low // _DAY_MS - 1, high // _DAY_MS + 1, closed=False))
    elif not pa.types.is_integer(kind):
        return None
    try:
        for each in found:
            if each is not None:
                _scalar(each.low, kind), _scalar(each.high, kind)
    except (pa.ArrowException, OverflowError):
        return None
    nothing = low - _ZONE_MS <= 0 <= high + _ZONE_MS  # a null counts as the start of 1970
    return [*found, None] if nothing else found


def partition_field(
    config: TableConfig, schema: pa.Schema, number: int, *, from_folder: bool
) -> PartitionField | None:
    """Return how a field's values become folders; None if the table's properties do not say."""
    name = config.partition_fields[number]
    head, *rest = name.split(".")
    if head not in schema.names:
        return None
    inner = schema.field(head).type
    for step in rest:
        if not pa.types.is_struct(inner) or inner.get_field_index(step) < 0:
            return None
        inner = inner.field(step).type
    if from_folder:
        return PartitionField(name=name, type=inner, from_folder=True)
    generator = (config.key_generator_type or "").removesuffix("_AVRO")
    if generator == KeyGenerator.CUSTOM.value:
        generator = config.partition_field_types[number] or ""
    if generator == KeyGenerator.TIMESTAMP.value:
        times = stored_times_of(config)
        return None if times is None else PartitionField(name=name, type=inner, times=times)
    is_plain = generator in (KeyGenerator.SIMPLE.value, KeyGenerator.COMPLEX.value)
    if not is_plain or config.slash_separated_dates:
        return None
    return PartitionField(name=name, type=inner)
