"""Options of inserts: SQL's INSERT, and what happens to rows of known keys."""

from __future__ import annotations

from timeline.model.commit_metadata import WriteOperation
from timeline.properties.options import LayeredSettings, option
from timeline.properties.setting_enums import InsertDuplicates, OverwriteMode, SqlInsertMode


class InsertSettings(LayeredSettings):
    """How inserts treat the rows that a table has."""

    overwrite_mode: OverwriteMode | None = option(
        "hoodie.datasource.overwrite.mode",
        None,
        "Save mode overwrite replaces the table (STATIC) or the partitions of the rows (DYNAMIC).",
    )
    sql_insert_operation: WriteOperation | None = option(
        "hoodie.spark.sql.insert.into.operation",
        None,
        "Operation of INSERT INTO; unset, upsert with key and ordering field, else insert.",
        choices=("upsert", "insert", "bulk_insert"),
    )
    sql_insert_mode: SqlInsertMode | None = option(
        "hoodie.sql.insert.mode",
        None,
        "Older option of INSERT INTO into a table with a key: upsert, strict (refuse known keys) or "
        "non-strict (keep both rows). A newer option that names an operation decides before it.",
    )
    sql_bulk_insert: bool = option(
        "hoodie.sql.bulk.insert.enable",
        False,
        "Older option: INSERT INTO is a bulk insert, which keeps rows of known keys beside the old.",
    )
    insert_drop_duplicates: bool = option(
        "hoodie.datasource.write.insert.drop.duplicates",
        False,
        "Ignore rows of an insert whose key the table has already.",
    )
    insert_duplicates: InsertDuplicates = option(
        "hoodie.datasource.insert.dup.policy",
        InsertDuplicates.NONE,
        "How an insert treats a key that the table has: keep both rows, drop the new row, or fail. "
        "With drop and fail, an upsert by options and INSERT INTO of SQL are such inserts.",
    )
    allow_duplicates_on_inserts: bool = option(
        "hoodie.merge.allow.duplicate.on.inserts",
        True,
        "Keep rows of equal keys apart if an insert fills a small file.",
    )
