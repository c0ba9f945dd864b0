"""
Filters of rows: SQL text, ``(column, operator, value)`` terms, or a pyarrow expression.

``filter_text.py`` reads texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from timeline.errors import (
    InvalidInputError,
)

Filter: TypeAlias = str | pc.Expression | Sequence[tuple[str, str, object]] | None


def to_expression(condition: Filter, schema: pa.Schema) -> pc.Expression | None:
    """
    Return a filter as a pyarrow expression over a schema; None for no filter.

    Raises:
        InvalidInputError: The text does not parse (``filter``), names no column of the schema
            (``unknown_column``), or compares a column with a value of another type
            (``filter_value``); an expression or a term does not fit the schema (``filter``).
    """
    if condition is None:
        return None
    if isinstance(condition, str):
        from filegroups.reading.filter_text import FilterText  # sqlglot takes 0.1 s to import

        return FilterText(condition, schema).expression
    try:
        wanted = condition
        if not isinstance(condition, pc.Expression):
            wanted = pq.filters_to_expression([tuple(term) for term in condition])
        # Evaluated on no rows: a wrong column or type is the caller's error, not a damaged file.
        schema.empty_table().filter(wanted)
    except (ValueError, TypeError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInputError(
            "the filter does not fit the table. Write a text like \"month = 3 AND name LIKE 'A%'\", "
            "a pyarrow expression, or a list of (column, operator, value). The operators are "
            f"= == != < <= > >= in 'not in'; the columns are {schema.names}: {error}",
            kind="filter",
        ) from error
    return wanted


def allowed_values(condition: Filter, column: str, schema: pa.Schema) -> list[object] | None:
    """
    Return the values that a filter allows for a column by ``=`` or ``IN``; None for any value.

    Only terms that every matching row fulfils count: those of a list, and those that ``AND``
    joins in a text. The first such term of the column is returned.
    """
    terms: Iterable[tuple[str, str, Any]] = ()
    if isinstance(condition, str):
        from filegroups.reading.filter_text import FilterText

        terms = FilterText(condition, schema).equalities()
    elif condition is not None and not isinstance(condition, pc.Expression):
        terms = condition
    for name, sign, value in terms:
        if name == column and sign in ("=", "=="):
            return [value]
        if name == column and sign == "in":
            return list(value)
    return None
