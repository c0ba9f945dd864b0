"""
Options of Hudi that this release does not carry out and that would change the table.

Each is refused by name, because silence would write another table than the one asked
for. Options that only tune Java, Spark or speed are not here: ignoring them is right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from timeline.errors import SettingError
from timeline.properties.options import PropertySet, redact

__all__ = [
    "UNSUPPORTED",
    "WITHOUT_EFFECT",
    "UnsupportedKey",
    "UnsupportedRule",
    "refuse_unsupported",
    "unsupported_keys",
]


@dataclass(frozen=True, slots=True)
class UnsupportedRule:
    """
    When an option is refused.

    ``accepted`` are the values that change nothing, lower case; any other is refused. An
    empty value always counts as not said.
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
_PARQUET_ONLY: Final = "base files are parquet only"
_METADATA_TABLE: Final = "the metadata table is not maintained yet, use false"

UNSUPPORTED: Final[Mapping[str, UnsupportedRule]] = MappingProxyType(
    {
        # what the table is
        "hoodie.table.format": _only("native", reason="other table formats are not written"),
        "hoodie.base.file.format": _only("PARQUET", reason=_PARQUET_ONLY),
        "hoodie.table.base.file.format": _only("PARQUET", reason=_PARQUET_ONLY),
        "hoodie.table.ro.file.format": _only("PARQUET", reason=_PARQUET_ONLY),
        "hoodie.table.multiple.base.file.formats.enable": _off(_PARQUET_ONLY),
        "hoodie.timeline.layout.version": _only("2", reason="only timeline layout 2 is written"),
        "hoodie.bootstrap.base.path": _unset("bootstrapped tables are not written"),
        "hoodie.allow.operation.metadata.field": _off("the operation column is not written"),
        "hoodie.partition.metafile.use.base.format": _off("partition metadata is a text file"),
        "hoodie.metadata.enable": _off(_METADATA_TABLE),
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
        "hoodie.avro.schema.externalTransformation": _off("schemas are not transformed"),
        "hoodie.parquet.outputtimestamptype": _only(
            "TIMESTAMP_MICROS", reason="timestamps are written in microseconds"
        ),
        "hoodie.parquet.writelegacyformat.enabled": _off("only the current format is written"),
        "hoodie.parquet.write.config.injector.class": _unset("injected classes are not run"),
        # how writing goes
        "hoodie.bulkinsert.user.defined.partitioner.class": _unset(
            "custom partitioners are not run"
        ),
        "hoodie.precommit.validators": _unset(
            "checks before a commit are not run yet, and would pass unseen"
        ),
    }
)

# Known, switched on, harmless for the rows, and not done: worth a word, not a refusal.
WITHOUT_EFFECT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "hoodie.datasource.hive_sync.enable": "no catalog is told of the table",
        "hoodie.datasource.meta.sync.enable": "no catalog is told of the table",
        "hoodie.write.commit.callback.on": "nobody is called after a commit",
        "hoodie.errortable.enable": "rows that cannot be written fail the write",
    }
)


def unsupported_keys(properties: PropertySet) -> tuple[UnsupportedKey, ...]:
    """Every property that asks for what would change the table and is not done, in order."""
    found = []
    for key, rule in UNSUPPORTED.items():
        value = properties.get(key, "").strip()
        if value and value.casefold() not in rule.accepted:
            found.append(
                UnsupportedKey(
                    key=key,
                    value=redact(key, value),
                    layer=properties.layer_of(key),
                    reason=rule.reason,
                )
            )
    return tuple(found)


def refuse_unsupported(properties: PropertySet) -> None:
    """
    Refuse properties that ask for what would change the table and is not done.

    Raises:
        SettingError: There is one or more; ``kind`` is ``unsupported_setting``, the fields
            describe the first, the message names all.
    """
    found = unsupported_keys(properties)
    if not found:
        return
    listed = "; ".join(f"{one.reason}: {one.key}={one.value} (from {one.layer})" for one in found)
    raise SettingError(
        listed,
        kind="unsupported_setting",
        key=found[0].key,
        value=found[0].value,
        layer=found[0].layer,
        suggestion=found[0].reason,
    )
