"""
How a table makes keys and partition paths: key generators and formats of times, as values.

Settings use these values. The module imports neither numpy nor pyarrow, so that a command that
only reads settings starts fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class KeyGenerator(Enum):
    """How keys and partition paths are made, spelled as in ``hoodie.table.keygenerator.type``."""

    SIMPLE = "SIMPLE"
    COMPLEX = "COMPLEX"
    NON_PARTITION = "NON_PARTITION"
    TIMESTAMP = "TIMESTAMP"
    CUSTOM = "CUSTOM"
    GLOBAL_DELETE = "GLOBAL_DELETE"


def infer_key_generator(n_keys: int, n_partitions: int) -> KeyGenerator:
    """Return Hudi's default generator for a number of key and partition fields."""
    if n_partitions == 0:
        return KeyGenerator.NON_PARTITION
    return KeyGenerator.SIMPLE if n_keys == n_partitions == 1 else KeyGenerator.COMPLEX


class TimestampType(Enum):
    """The meaning of the column, spelled as in ``hoodie.keygen.timebased.timestamp.type``."""

    UNIX_TIMESTAMP = "UNIX_TIMESTAMP"
    EPOCHMILLISECONDS = "EPOCHMILLISECONDS"
    EPOCHMICROSECONDS = "EPOCHMICROSECONDS"
    SCALAR = "SCALAR"
    DATE_STRING = "DATE_STRING"
    MIXED = "MIXED"

    @property
    def reads_text(self) -> bool:
        """Whether it is text in a given pattern."""
        return self in (TimestampType.DATE_STRING, TimestampType.MIXED)


class TimeUnit(Enum):
    """Units of a SCALAR: milliseconds per unit, units per millisecond."""

    NANOSECONDS = (1, 1_000_000)
    MICROSECONDS = (1, 1_000)
    MILLISECONDS = (1, 1)
    SECONDS = (1_000, 1)
    MINUTES = (60_000, 1)
    HOURS = (3_600_000, 1)
    DAYS = (86_400_000, 1)


_UNIT_OF_TYPE: Final = {
    TimestampType.UNIX_TIMESTAMP: TimeUnit.SECONDS,
    TimestampType.EPOCHMILLISECONDS: TimeUnit.MILLISECONDS,
    TimestampType.EPOCHMICROSECONDS: TimeUnit.MICROSECONDS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimestampKeys:
    """
    The ``hoodie.keygen.timebased.*`` properties of a table.

    ``input_zone`` is the zone of texts without a zone, ``output_zone`` that of the folders; None
    means the text's own zone, else UTC.
    """

    kind: TimestampType
    output_format: str
    input_formats: tuple[str, ...] = ()
    input_zone: str | None = None
    output_zone: str | None = None
    scalar_unit: TimeUnit = TimeUnit.SECONDS

    @property
    def unit(self) -> TimeUnit | None:
        """The unit of numbers; None if only text is read."""
        if self.kind is TimestampType.SCALAR:
            return self.scalar_unit
        return _UNIT_OF_TYPE.get(self.kind)

    @property
    def levels(self) -> int:
        """The number of nested folders that a time makes."""
        from filegroups.keys.date_patterns import parse_date_pattern  # needs numpy and pyarrow

        return parse_date_pattern(self.output_format).levels
