"""
From the Avro schema of a table to the columns of a catalog, and to Spark's schema text.

The types are those of Hudi 1.2: ``HiveSchemaUtil`` for Hive and Glue, and the schema JSON of
Spark's data sources. Nested names count in lower case, because the metastore compares so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from filegroups.schema.avro_schema import record_space
from filegroups.schema.schema import META_COLUMNS
from timeline.errors import UnsupportedTableError


@dataclass(frozen=True, slots=True)
class CatalogColumn:
    """One column of an entry: its name, its type as Hive spells it, and its comment."""

    name: str
    kind: str
    comment: str = ""


@dataclass(frozen=True, slots=True)
class _Kind:
    """A type for Hive, and its JSON text for Spark."""

    hive: str
    spark: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryColumns:
    """The columns of an entry and Spark's schema of the table; partition columns come last."""

    columns: tuple[CatalogColumn, ...]
    partition_columns: tuple[CatalogColumn, ...]
    spark_schema: str


#: Avro type and logical type -> the type of Hive and of Spark. A time is bigint for Hive unless
#: ``support_timestamp`` is on.
_PLAIN: Final[Mapping[tuple[str, str | None], tuple[str, str]]] = {
    ("boolean", None): ("boolean", "boolean"),
    ("int", None): ("int", "integer"),
    ("int", "date"): ("date", "date"),
    ("long", None): ("bigint", "long"),
    ("long", "timestamp-millis"): ("timestamp", "timestamp"),
    ("long", "timestamp-micros"): ("timestamp", "timestamp"),
    ("long", "local-timestamp-millis"): ("timestamp", "timestamp_ntz"),
    ("long", "local-timestamp-micros"): ("timestamp", "timestamp_ntz"),
    ("float", None): ("float", "float"),
    ("double", None): ("double", "double"),
    ("string", None): ("string", "string"),
    ("enum", None): ("string", "string"),
    ("bytes", None): ("binary", "binary"),
    ("fixed", None): ("binary", "binary"),
}
_META_DOCUMENT: Final = tuple({"name": name, "type": ["null", "string"]} for name in META_COLUMNS)


def columns_of(
    avro_json: str,
    partition_fields: Sequence[str],
    *,
    meta_columns: bool,
    timestamps: bool,
    comments: bool,
) -> EntryColumns:
    """
    Return the columns of a table's entry.

    Args:
        avro_json: The table's Avro schema, without meta columns.
        partition_fields: Partition columns of the entry; one that the schema lacks is a text.
        meta_columns: Whether the entry has the columns ``_hoodie_...``.
        timestamps: Whether times are ``timestamp`` for Hive, not ``bigint``.
        comments: Whether columns have the documentation of the schema as comments.

    Raises:
        UnsupportedTableError: The catalog has no such type (``sync_type``), or two columns differ
            in case only (``sync_column_twice``).
    """
    document = json.loads(avro_json)
    space = record_space(document, document.get("namespace", ""))
    own = [one for one in document["fields"] if one["name"] not in META_COLUMNS]
    fields = [*(_META_DOCUMENT if meta_columns else ()), *own]
    walk = _Walk(timestamps=timestamps, named={})
    kinds = {one["name"]: walk.kind(one["type"], space) for one in fields}
    by_name = {one["name"]: one for one in fields}
    missing = {name: _Kind("string", '"string"') for name in partition_fields}

    def catalog_column(name: str) -> CatalogColumn:
        kind = kinds.get(name) or missing[name]
        comment = str(by_name.get(name, {}).get("doc") or "") if comments else ""
        return CatalogColumn(name.lower(), kind.hive.lower(), comment)

    data = [one["name"] for one in fields if one["name"] not in partition_fields]
    made = EntryColumns(
        columns=tuple(map(catalog_column, data)),
        partition_columns=tuple(map(catalog_column, partition_fields)),
        spark_schema=_struct_text(
            [
                _field_text(
                    name,
                    (kinds.get(name) or missing[name]).spark,
                    nullable=name in by_name and _is_nullable(by_name[name]["type"]),
                    doc=by_name.get(name, {}).get("doc"),
                )
                for name in (*data, *partition_fields)
            ]
        ),
    )
    names = [one.name for one in (*made.columns, *made.partition_columns)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UnsupportedTableError(
            "a catalog does not distinguish names by case: rename one of the columns: "
            f"{', '.join(twice)}",
            kind="sync_column_twice",
            columns=twice,
        )
    return made


@dataclass(frozen=True, slots=True)
class _Walk:
    """Converts the types of one schema; ``named`` has the named types met so far."""

    timestamps: bool
    named: dict[str, _Kind]

    def kind(self, avro: Any, space: str) -> _Kind:
        if isinstance(avro, list):
            others = [one for one in avro if one != "null"]
            if len(others) != 1:
                raise _no_type(avro)
            return self.kind(others[0], space)
        if isinstance(avro, str):
            return self.named.get(avro) or self.named.get(f"{space}.{avro}") or self._plain(avro)
        if isinstance(avro["type"], list | dict):
            return self.kind(avro["type"], space)
        made = self._of_document(avro, space)
        if "name" in avro:
            self.named[record_space(avro, space)] = made
            self.named[str(avro["name"])] = made
        return made

    def _of_document(self, avro: dict[str, Any], space: str) -> _Kind:
        outer, logical = avro["type"], avro.get("logicalType")
        if logical == "decimal":
            precision, scale = avro["precision"], avro.get("scale", 0)
            text = f"decimal({precision},{scale})"
            return _Kind(text, json.dumps(text))
        if outer == "record":
            inside = record_space(avro, space)
            kinds = [(one, self.kind(one["type"], inside)) for one in avro["fields"]]
            hive = ",".join(f"{one['name']}:{kind.hive}" for one, kind in kinds)
            spark = [
                _field_text(
                    one["name"],
                    kind.spark,
                    nullable=_is_nullable(one["type"]),
                    doc=one.get("doc"),
                )
                for one, kind in kinds
            ]
            return _Kind(f"struct<{hive}>", _struct_text(spark))
        if outer == "array":
            kind, nullable = self.kind(avro["items"], space), _is_nullable(avro["items"])
            # Hudi 1.2 writes a space here. Its text and ours must be equal, or two engines that
            # sync one table would replace the property in turn.
            return _Kind(
                f"array<{kind.hive}>",
                f'{{"type":"array", "elementType":{kind.spark},"containsNull":{_flag(nullable)}}}',
            )
        if outer == "map":
            kind, nullable = self.kind(avro["values"], space), _is_nullable(avro["values"])
            return _Kind(
                f"map<string,{kind.hive}>",
                f'{{"type":"map", "keyType":"string","valueType":{kind.spark},'
                f'"valueContainsNull":{_flag(nullable)}}}',
            )
        return self._plain(str(outer), logical)

    def _plain(self, name: str, logical: str | None = None) -> _Kind:
        found = _PLAIN.get((name, logical)) or _PLAIN.get((name, None))
        if found is None:
            raise _no_type(name)
        hive, spark = found
        if hive == "timestamp" and not self.timestamps:
            hive = "bigint"
        return _Kind(hive, json.dumps(spark))


def _is_nullable(avro: Any) -> bool:
    return avro == "null" or (isinstance(avro, list) and "null" in avro)


def _flag(value: bool) -> str:  # noqa: FBT001
    return "true" if value else "false"


def _field_text(name: str, kind: str, *, nullable: bool, doc: object) -> str:
    metadata = {"comment": str(doc)} if doc and str(doc).strip() else {}
    extra = json.dumps(metadata, separators=(",", ":"), ensure_ascii=False)
    text = json.dumps(name, ensure_ascii=False)
    return f'{{"name":{text},"type":{kind},"nullable":{_flag(nullable)},"metadata":{extra}}}'


def _struct_text(fields: Sequence[str]) -> str:
    return f'{{"type":"struct","fields":[{",".join(fields)}]}}'


def _no_type(avro: object) -> UnsupportedTableError:
    return UnsupportedTableError(
        f"a catalog has no type for a column of the table: leave it out of the sync: {avro!r}",
        kind="sync_type",
    )
