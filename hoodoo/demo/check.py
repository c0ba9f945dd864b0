"""
Is any row lost or doubled? Computed in plain pyarrow, without the engine's merging.

Every flight must be there once: corrected where the corrector corrected it, as loaded
elsewhere. Both sides are put into key order and compared value by value.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from hoodoo.demo.flights import KEY_COLUMNS, ORDERING

__all__ = ["Comparison", "compare", "expected_rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What the comparison found."""

    rows_expected: int
    rows_found: int
    keys_found: int
    rows_corrected: int
    columns_different: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether every row is there once, with every value."""
        return (
            self.rows_expected == self.rows_found == self.keys_found and not self.columns_different
        )

    @property
    def text(self) -> str:
        """One line for people."""
        if self.ok:
            return (
                f"{self.rows_found:,} rows, each there once and with every value right; "
                f"{self.rows_corrected:,} of them corrected"
            )
        lost = self.rows_expected - self.keys_found
        doubled = self.rows_found - self.keys_found
        columns = ", ".join(self.columns_different) or "none"
        return f"{lost} rows lost, {doubled} doubled; columns with wrong values: {columns}"


def expected_rows(loaded: pa.Table, corrected: pa.Table) -> pa.Table:
    """The loaded rows, each replaced by its correction where there is one."""
    keys = list(KEY_COLUMNS)
    kept = loaded.join(corrected.select(keys), keys=keys, join_type="left anti")
    return pa.concat_tables([kept.select(loaded.column_names), corrected])


def compare(expected: pa.Table, found: pa.Table) -> Comparison:
    """Compare two sets of rows by key."""
    keys = list(KEY_COLUMNS)
    order = [(name, "ascending") for name in (*keys, ORDERING)]
    one = expected.sort_by(order)
    two = found.select(expected.column_names).sort_by(order)
    distinct = found.group_by(keys).aggregate([]).num_rows
    different: tuple[str, ...] = ()
    if one.num_rows == two.num_rows:
        different = tuple(
            name
            for name in expected.column_names
            if not one[name]
            .combine_chunks()
            .equals(two[name].cast(one.schema.field(name).type).combine_chunks())
        )
    corrected = pc.sum(pc.equal(found[ORDERING], 2)).as_py() or 0
    return Comparison(
        rows_expected=expected.num_rows,
        rows_found=found.num_rows,
        keys_found=distinct,
        rows_corrected=corrected,
        columns_different=different,
    )
