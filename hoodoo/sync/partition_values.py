"""From partition paths to the values of a catalog's partitions, by the rules of Hudi's classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import TypeAlias
from urllib.parse import unquote

from timeline.errors import InvalidInputError
from timeline.model.table_config import TableConfig

Values: TypeAlias = tuple[str, ...]
PartitionExtractor: TypeAlias = Callable[[str], Values]


def _whole_folders(path: str) -> Values:
    """Return one value for each folder, without ``column=`` before it."""
    return tuple(part.partition("=")[2] if "=" in part else part for part in path.split("/"))


def _hive_style(path: str) -> Values:
    name, separator, value = path.partition("=")
    if not separator or not name or "=" in value:
        raise ValueError("it has not the form column=value")
    return (value,)


def _single_part(path: str) -> Values:
    return (path.replace("/", "-"),)


def _day(path: str) -> Values:
    return (_time(path, parts=3).strftime("%Y-%m-%d"),)


def _hour(path: str) -> Values:
    return (_time(path, parts=4).strftime("%Y-%m-%d-%H"),)


def _time(path: str, *, parts: int) -> datetime:
    numbers = [int(value) for value in _whole_folders(path)]
    if len(numbers) != parts:
        raise ValueError(f"it has not {parts} folders, such as 2026/01/31{'/23' * (parts - 3)}")
    year, month, day, hour = (*numbers, 0)[:4]
    return datetime(year, month, day, hour)  # noqa: DTZ001 - a folder has no zone


def _none(path: str) -> Values:  # noqa: ARG001 - as the others
    return ()


#: By short name of Hudi's class.
EXTRACTORS: Mapping[str, PartitionExtractor] = MappingProxyType(
    {
        "MultiPartKeysValueExtractor": _whole_folders,
        "HiveStylePartitionValueExtractor": _hive_style,
        "SinglePartPartitionValueExtractor": _single_part,
        "SlashEncodedDayPartitionValueExtractor": _day,
        "SlashEncodedHourPartitionValueExtractor": _hour,
        "NonPartitionedExtractor": _none,
    }
)


def values_of_paths(
    paths: Sequence[str],
    fields: Sequence[str],
    extractor: PartitionExtractor | None,
    *,
    decode: bool,
) -> dict[Values, str]:
    """
    Return the partition path of each partition's values.

    Args:
        paths: Partition paths of the table.
        fields: The partition columns of the entry.
        extractor: None takes one value for each folder.
        decode: Whether to decode %XX in values.

    Raises:
        InvalidInputError: A path does not give one value for each column (``sync_partition``), or
            two paths give the same values.
    """
    found: dict[Values, str] = {}
    for path in paths:
        try:
            values = (extractor or _whole_folders)(path)
        except ValueError as error:
            raise _refused(path, fields, str(error)) from None
        if len(values) != len(fields):
            raise _refused(path, fields, f"it gives {len(values)} values")
        decoded = tuple(map(unquote, values)) if decode else values
        if found.setdefault(decoded, path) != path:
            raise _refused(path, fields, f"it gives the values of {found[decoded]!r}")
    return found


def _refused(path: str, fields: Sequence[str], why: str) -> InvalidInputError:
    return InvalidInputError(
        "a partition path does not fit the partition columns of the catalog: choose another "
        f"hoodie.datasource.hive_sync.partition_extractor_class, one of {', '.join(EXTRACTORS)}: "
        f"{path!r} for {', '.join(fields)}: {why}",
        kind="sync_partition",
        partition_path=path,
    )


def decodes(config: TableConfig, chosen: bool | None) -> bool:  # noqa: FBT001
    """Return whether values are decoded: as chosen, else as the table encodes its folders."""
    return config.url_encode_partitioning if chosen is None else chosen
