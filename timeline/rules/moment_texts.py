"""
Moments as texts of folders, for partition columns that are timestamps.

Java Hudi makes three kinds, and no property of the table tells which (fmt 4.1): a DataFrame's
write names the stored number, or with
``hoodie.datasource.write.keygenerator.consistent.logical.timestamp.enabled`` what
``java.sql.Timestamp`` prints; Spark SQL names seconds with escaped colons. The last two are
told on the clock of the process that wrote.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from timeline.errors import InvalidInputError, UnsupportedTableError

__all__ = ["NUMBERS", "MomentForm", "MomentTexts", "form_of", "moment_texts"]

_SHAPE: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d(?::|%3A)\d\d(?::|%3A)\d\d(\.\d{1,9})?")


class MomentForm(Enum):
    """What a folder of a moment reads."""

    NUMBER = "number"  # 1678451400000000
    TIMESTAMP = "timestamp"  # 2023-03-10 12:30:00.0
    SQL = "sql"  # 2023-03-10 12%3A30%3A00


@dataclass(frozen=True, slots=True)
class MomentTexts:
    """
    The form of a table's folders of moments, and the zone whose clock they show.

    ``or_zone`` is a second zone that all folders with rows fit as well.
    """

    form: MomentForm = MomentForm.NUMBER
    zone: str = "UTC"
    or_zone: str = ""


#: As a DataFrame's write of Java Hudi makes them.
NUMBERS: Final = MomentTexts()


def form_of(text: str) -> MomentForm | None:
    """The form of a partition value as a folder shows it; None for no moment's."""
    if re.fullmatch(r"-?\d+", text):
        return MomentForm.NUMBER
    found = _SHAPE.fullmatch(text)
    if found is None:
        return None
    return MomentForm.SQL if found[1] is None else MomentForm.TIMESTAMP


def moment_texts(moments: pa.Array, how: MomentTexts, name: str) -> pa.Array:
    """
    Tell moments with a zone as folders do; nulls stay.

    Shapes: (n,) timestamps -> (n,) texts, colons of the SQL form escaped.

    Raises:
        InvalidInputError: The zone is unknown here (``bad_time_zone``).
        UnsupportedTableError: Two zones are possible, and a moment reads differently in them
            (``partition_zone``).
    """
    texts = _texts_in(moments, how.form, how.zone, name)
    if how.or_zone:
        differ = pc.not_equal(texts, _texts_in(moments, how.form, how.or_zone, name))
        if pc.any(differ).as_py():
            raise UnsupportedTableError(
                "the table's folders fit two time zones, and the row's moment has another folder "
                "in each; let another writer of the table write a row of such a moment first, or "
                "run this with TZ=UTC where all writers of the table do: "
                f"column={name!r} zones={[how.zone, how.or_zone]} "
                f"moment={moments.filter(differ)[0].as_py()}",
                kind="partition_zone",
                feature="folders of moments in one of two zones",
            )
    return texts


def _texts_in(moments: pa.Array, form: MomentForm, zone: str, name: str) -> pa.Array:
    fine = pc.cast(moments, pa.timestamp("us", moments.type.tz))
    try:
        clock = pc.local_timestamp(pc.cast(fine, pa.timestamp("us", zone)))
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            f"folders of moments show the clock of a zone that is not known here; set TZ to its "
            f"name as the operating system spells it: column={name!r} zone={zone!r}: {error}",
            kind="bad_time_zone",
            column=name,
        ) from error
    if form is MomentForm.SQL:
        seconds = pc.cast(pc.floor_temporal(clock, unit="second"), pa.timestamp("s"))
        return pc.replace_substring(pc.cast(seconds, pa.string()), ":", "%3A")
    texts = pc.cast(clock, pa.string())
    return pc.replace_substring_regex(texts, r"(\.\d+?)0*$", r"\1")
