"""
The global index on Spark: find each row's key in the whole table, by one join.

The same decisions as in ``filegroups.index.lookup``, but as columns: which file of the table
contains the key, and whether the row moves from that file's partition to its own.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from filegroups.merge.merging import RELOCATED_COLUMN
from filegroups.merge.rules import DELETING_OPERATIONS, OPERATION_COLUMN
from filegroups.schema.schema import IS_DELETED_COLUMN
from filegroups.writing.write_request import RowRules
from hoodoo.spark.tasks import ERROR, KEY, OLD_ORDER, ORDER, PARTITION, ROWS, CombineRows

NUMBER = "_hoodoo_number"  # of the candidate file that a row is merged into
RELOCATED_FROM = "_hoodoo_left"  # of the candidate file that a moving row leaves
_FOUND, _RANK = "_hoodoo_found", "_hoodoo_rank"


def one_row_a_key(rows: Any, rules: RowRules, avro_json: str) -> Any:
    """Return one row for each key, across partitions, and all error rows; each counts once."""
    merge = rules.combining(avro_json)
    rows = rows.withColumn(ROWS, F.lit(1))
    if merge.reads_values or merge.merger is not None:
        together = rows.repartition(KEY).sortWithinPartitions(KEY, ORDER)
        return together.mapInArrow(CombineRows(rules=rules, avro_json=avro_json), rows.schema)
    ordering_fields = merge.ordering_fields if merge.by_order else ()
    newest = Window.partitionBy(KEY).orderBy(
        *(F.col(name).desc() for name in ordering_fields), F.col(ORDER).desc()
    )
    ranked = rows.withColumn(_RANK, F.row_number().over(newest))
    return ranked.where((F.col(_RANK) == 1) | F.col(ERROR).isNotNull()).drop(_RANK)


def with_row_targets(rows: Any, held: Any, rules: RowRules, *, small: bool) -> Any:
    """
    Add to each row the number of the file that it is merged into, and of the one it leaves.

    Args:
        rows: Prepared rows, one for each key.
        held: Keys of all candidate files with number, partition path and old ordering values.
        rules: The rules that make records of rows.
        small: Whether the keys fit into the memory of each executor.
    """
    old = sorted(name for name in held.columns if name.startswith(OLD_ORDER))
    wanted = rows.select(KEY)
    matching = held.join(F.broadcast(wanted) if small else wanted, [KEY], "left_semi")
    # A key in several file groups goes to the first of them, as in ``LocalWorkload``.
    first = F.min(F.struct("number", PARTITION, *old)).alias(_FOUND)
    found = matching.groupBy(KEY).agg(first)
    joined = rows.join(F.broadcast(found) if small else found, [KEY], "left")
    number = F.col(f"{_FOUND}.number")
    moves = F.lit(rules.moves_rows) & (F.col(f"{_FOUND}.{PARTITION}") != F.col(PARTITION))
    moves &= ~_deletes(rows, rules)
    if old:
        fields = zip(rules.ordering_fields, old, strict=True)
        pairs = [(F.col(name).alias(key), F.col(f"{_FOUND}.{key}")) for name, key in fields]
        newer = F.struct(*(new for new, _ in pairs))
        older = F.struct(*(value.alias(key) for (_, value), key in zip(pairs, old, strict=True)))
        moves &= newer >= older  # a null is less than any value, as in Java
    moves = F.coalesce(moves, F.lit(False))
    return (
        joined.withColumn(RELOCATED_FROM, F.when(moves, number))
        .withColumn(NUMBER, F.when(~moves, number))
        .drop(_FOUND)
    )


def _deletes(rows: Any, rules: RowRules) -> Any:
    """Return the condition of rows that are deletes (``MergeRules.deletes``)."""
    found = F.col(RELOCATED_COLUMN) if RELOCATED_COLUMN in rows.columns else F.lit(False)
    if IS_DELETED_COLUMN in rows.columns:
        found |= F.coalesce(F.col(IS_DELETED_COLUMN), F.lit(False))
    if OPERATION_COLUMN in rows.columns:
        found |= F.coalesce(F.col(OPERATION_COLUMN).isin(*DELETING_OPERATIONS), F.lit(False))
    marked, marker = rules.merge.delete_field, rules.merge.delete_marker
    if marked in rows.columns and marker is not None:
        found |= F.coalesce(F.col(marked).cast("string") == marker, F.lit(False))
    return found
