"""
Options of Hudi that this release does not support and that would change the table.

Each is refused by name, because to ignore it would write another table than requested. Options that
only tune Java, Spark or speed are not here: hoodoo ignores them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from filegroups.settings.known_keys import hudi_keys
from filegroups.supported import ELSEWHERE
from timeline.errors import SettingError
from timeline.properties.options import TABLE_LAYER, PropertySet, redact

__all__ = [
    "UNSUPPORTED",
    "UNSUPPORTED_READS",
    "UNSUPPORTED_SERVICES",
    "UnsupportedKey",
    "UnsupportedRule",
    "refuse_unsupported",
    "unsupported_keys",
]


@dataclass(frozen=True, slots=True)
class UnsupportedRule:
    """
    The rule that refuses an option.

    ``accepted`` are the values that change nothing, in lower case; any other value is refused. An
    empty value counts as not given.
    """

    accepted: frozenset[str]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsupportedKey:
    """One refused property."""

    key: str
    value: str  # redacted
    layer: str
    reason: str


def _off(reason: str) -> UnsupportedRule:
    return UnsupportedRule(frozenset({"false"}), reason)


def _unset(reason: str) -> UnsupportedRule:
    return UnsupportedRule(frozenset(), reason)


def _only(*accepted: str, reason: str) -> UnsupportedRule:
    return UnsupportedRule(frozenset(text.casefold() for text in accepted), reason)


_NO_INDEX: Final = (
    "rows are not placed by this index, use SIMPLE, BLOOM, their GLOBAL_ ones or BUCKET"
)
_SCHEMA_ON_READ: Final = "columns with ids (schema on read) are read, and not written"
_CLEANS_ALL: Final = "a clean looks at all partitions, use hoodie.clean.automatic=false to keep all"
_PARQUET_ONLY: Final = "base files are parquet only"

#: Options of services: they would keep files that the service deletes here all the same.
UNSUPPORTED_SERVICES: Final[Mapping[str, UnsupportedRule]] = MappingProxyType(
    {
        "hoodie.clean.partition.filter.regex": _unset(_CLEANS_ALL),
        "hoodie.clean.partition.filter.selected": _unset(_CLEANS_ALL),
    }
)

UNSUPPORTED: Final[Mapping[str, UnsupportedRule]] = MappingProxyType(
    {
        # the table
        "hoodie.table.format": _only("native", reason="other table formats are not written"),
        "hoodie.base.file.format": _only("PARQUET", reason=_PARQUET_ONLY),
        "hoodie.table.base.file.format": _only("PARQUET", reason=_PARQUET_ONLY),
        "hoodie.table.multiple.base.file.formats.enable": _off(_PARQUET_ONLY),
        "hoodie.timeline.layout.version": _only("2", reason="only timeline layout 2 is written"),
        "hoodie.bootstrap.base.path": _unset("bootstrapped tables are not written"),
        "hoodie.allow.operation.metadata.field": _off("the operation column is not written"),
        "hoodie.metaserver.enabled": _off("the metaserver is not supported"),
        "hoodie.storage.layout.type": _only(
            "DEFAULT", "BUCKET", reason="the layout follows from the index"
        ),
        "hoodie.storage.layout.partitioner.class": _only(
            "org.apache.hudi.table.action.commit.SparkBucketIndexPartitioner",
            reason="custom layouts are not supported",
        ),
        "hoodie.bucket.index.partition.expressions": _unset(
            "every partition has the same number of buckets"
        ),
        # keys and partitions
        "hoodie.datasource.write.slash.separated.date.partitioning": _off(
            "date folders are not supported"
        ),
        "hoodie.datasource.write.keygenerator.consistent.logical.timestamp.enabled": _off(
            "keys of timestamp fields are written as numbers"
        ),
        "hoodie.index.type": _only(
            "SIMPLE", "BLOOM", "GLOBAL_SIMPLE", "GLOBAL_BLOOM", "BUCKET", reason=_NO_INDEX
        ),
        "hoodie.index.class": _unset("custom indexes are not supported"),
        # schema
        "hoodie.schema.on.read.enable": _off(_SCHEMA_ON_READ),
        "hoodie.internal.schema": _unset(_SCHEMA_ON_READ),
        "hoodie.avro.schema.external.transformation": _off("schemas are not transformed"),
        "hoodie.parquet.outputtimestamptype": _only(
            "TIMESTAMP_MICROS", reason="timestamps are written in microseconds"
        ),
        "hoodie.parquet.writelegacyformat.enabled": _off("only the current format is written"),
        "hoodie.parquet.write.config.injector.class": _unset("injected classes are not run"),
        # the write
        **UNSUPPORTED_SERVICES,
        "hoodie.bulkinsert.user.defined.partitioner.class": _unset(
            "custom partitioners are not run"
        ),
        "hoodie.precommit.validators": _unset(
            "checks before a commit are not run yet, and would pass unseen"
        ),
    }
)

#: By Hudi's present key: unsupported options that would change the result of a read.
UNSUPPORTED_READS: Final[Mapping[str, UnsupportedRule]] = MappingProxyType(
    {
        "hoodie.datasource.merge.type": _only(
            "payload_combine", reason="rows of base and log files are merged, use payload_combine"
        ),
        "hoodie.datasource.read.schema.use.end.instanttime": _off(
            "a range is read by the table's schema of now, name the columns that are wanted"
        ),
        "hoodie.datasource.read.paths": _unset("a load takes one path, give it to load()"),
        "hoodie.datasource.read.incr.path.glob": _unset(
            "ranges are not bounded by folders, filter by the partition columns"
        ),
        "hoodie.datasource.read.incr.filters": _unset(
            "a range is filtered behind the load, use where() or a filter"
        ),
    }
)


def unsupported_keys(
    properties: PropertySet, rules: Mapping[str, UnsupportedRule] = UNSUPPORTED
) -> tuple[UnsupportedKey, ...]:
    """Return every property that requests an unsupported change of the result, in order."""
    found: dict[str, UnsupportedKey] = {}
    for key, rule in rules.items():
        for spelling in (key, *hudi_keys()[key.casefold()].aliases):
            value = properties.get(spelling, "").strip()
            if value and value.casefold() not in rule.accepted:
                found[spelling] = UnsupportedKey(
                    key=spelling,
                    value=redact(spelling, value),
                    layer=properties.layer_of(spelling),
                    reason=rule.reason,
                )
    return tuple(found.values())


def refuse_unsupported(
    properties: PropertySet, rules: Mapping[str, UnsupportedRule] = UNSUPPORTED
) -> None:
    """
    Refuse properties that request an unsupported change of the result.

    Args:
        properties: The given properties.
        rules: ``UNSUPPORTED`` for writes, ``UNSUPPORTED_READS`` for reads.

    Raises:
        SettingError: There is at least one; ``kind`` is ``unsupported_setting``. The fields
            describe the first, the message names all.
    """
    found = unsupported_keys(properties, rules)
    if not found:
        return
    listed = "; ".join(f"{one.reason}: {one.key}={one.value} (from {one.layer})" for one in found)
    if any(one.layer == TABLE_LAYER for one in found):
        listed += f". The table itself says so: {ELSEWHERE}"
    raise SettingError(
        listed,
        kind="unsupported_setting",
        key=found[0].key,
        value=found[0].value,
        layer=found[0].layer,
        suggestion=found[0].reason,
    )
