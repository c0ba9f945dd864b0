"""
Every key of Hudi, and the effect it has here: done, refused, warned about, or none by design.

``hudi_keys.json`` lists the keys of Hudi 1.2 with default, older spellings and a line of
explanation. Three literal tables say what becomes of a key that no option reads. A key of
``UNSUPPORTED`` would change the table or the result of a read: it is refused by name. A key of
``WARNED`` requests something that hoodoo does not do; the user gets a warning. A key of
``WITHOUT_EFFECT`` changes no row, no file and no promise, whatever its value. A pattern that ends
in ``*`` matches a family; the longest matching pattern counts.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Final

from timeline.errors import SettingError
from timeline.properties.options import TABLE_LAYER, PropertySet
from timeline.properties.setting_enums import IndexType
from timeline.redaction import redact

#: Advice for a table that this release does not write.
ELSEWHERE = (
    "it can be read, so write it with the engine that made it, or copy its rows into a new table "
    "('hoodoo read' into a file, 'hoodoo write --key ...' from it)"
)
OWN_PREFIXES: Final = ("hoodie.", "hoodoo.")
SESSION_PREFIX: Final = "spark."  # before the key, in the properties of a Spark session only

# Families of keys whose members Hudi does not list.
_FAMILIES: Final = (
    "hoodie.aws.",
    "hoodie.datasource.hive_sync.",
    "hoodie.deltastreamer.",
    "hoodie.gcp.",
    "hoodie.kafka.",
    "hoodie.keygen.",
    "hoodie.meta.sync.",
    "hoodie.metrics.",
    "hoodie.streamer.",
    "hoodie.table.keygenerator.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownKey:
    """One key of Hudi."""

    key: str
    default: str | None
    aliases: tuple[str, ...]
    doc: str


@cache
def hudi_keys() -> Mapping[str, KnownKey]:
    """Return Hudi's keys by each spelling, in lower case."""
    content = files("filegroups.settings").joinpath("hudi_keys.json").read_text(encoding="utf-8")
    found: dict[str, KnownKey] = {}
    for key, (default, aliases, doc) in json.loads(content).items():
        known = KnownKey(key=key, default=default, aliases=tuple(aliases), doc=doc)
        for spelling in (key, *aliases):
            found.setdefault(spelling.casefold(), known)
    return MappingProxyType(found)


def is_key_of_hudi(key: str) -> bool:
    """Return whether a key, in any case, is one of Hudi's or of a family of Hudi's."""
    return key.casefold() in hudi_keys() or key.casefold().startswith(_FAMILIES)


def main_key(key: str) -> str:
    """Return Hudi's present name for a key in any case and by any of its names; else the key."""
    known = hudi_keys().get(key.casefold())
    return key if known is None else known.key


def nearest_key(key: str, others: Iterable[str]) -> str | None:
    """Return the known key with the most similar spelling; None if none is similar."""
    wanted = key.casefold().removeprefix(SESSION_PREFIX)
    matches = get_close_matches(wanted, (*hudi_keys(), *others), n=1, cutoff=0.8)
    return main_key(matches[0]) if matches else None


# ---- Keys that are refused by name, because to ignore one would write another table than requested
#
# Options that only tune Java, Spark or speed are not here: hoodoo ignores them.


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
    "this index is not supported; use SIMPLE, BLOOM, GLOBAL_SIMPLE, GLOBAL_BLOOM or BUCKET"
)
_SCHEMA_ON_READ: Final = "tables with column ids (schema on read) are read, not written"
_CLEANS_ALL: Final = (
    "a clean covers all partitions; use hoodie.clean.automatic=false to keep all files"
)
_PARQUET_ONLY: Final = "base files are written as Parquet only"

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
        "hoodie.index.type": _only(*(index.value for index in IndexType), reason=_NO_INDEX),
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
            "checks before a commit are not run, so they would pass unnoticed"
        ),
    }
)

#: By Hudi's present key: unsupported options that would change the result of a read.
UNSUPPORTED_READS: Final[Mapping[str, UnsupportedRule]] = MappingProxyType(
    {
        "hoodie.datasource.merge.type": _only(
            "payload_combine", reason="base and log files are always merged; use payload_combine"
        ),
        "hoodie.datasource.read.schema.use.end.instanttime": _off(
            "a range is read with the newest schema; name the columns that you want"
        ),
        "hoodie.datasource.read.paths": _unset("a load has one path; pass it to load()"),
        "hoodie.datasource.read.incr.path.glob": _unset(
            "a range is not limited by folders; filter by the partition columns"
        ),
        "hoodie.datasource.read.incr.filters": _unset(
            "a range is filtered after the load; use where() or a filter"
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


# ---- The effect of each key


class Effect(Enum):
    """The effect of a key."""

    DONE = "done"
    REFUSED = "refused"
    WARNED = "warned"
    NONE = "none"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyEffect:
    """The effect of one key, and the reason; ``why`` is empty if the key is done or unknown."""

    effect: Effect
    why: str = ""


def _patterns(table: Iterable[tuple[str, str]]) -> Mapping[str, str]:
    return MappingProxyType({pattern: why for why, text in table for pattern in text.split()})


#: By key or family, the reason of a warning. A boolean key causes it if true, another key if its
#: value differs from Hudi's default.
WARNED: Final = _patterns(
    (
        (
            "the metadata table is neither built nor maintained; readers list folders",
            "hoodie.metadata.*",
        ),
        (
            "hoodoo does not sync catalogs; register the table with the catalog's own tools",
            """hoodie.datasource.hive_sync.* hoodie.datasource.meta.sync.*
            hoodie.datasource.meta_sync.* hoodie.meta.sync.* hoodie.meta_sync.*
            hoodie.datasource.partition_extractor_class hoodie.table.partition_extractor_class
            hoodie.spark.polaris.catalog.class hoodie.gcp.*""",
        ),
        (
            "hoodoo calls no program after a commit; use the event publish.done",
            "hoodie.write.commit.callback.*",
        ),
        (
            "rows that cannot be written fail the write; there is no error table",
            "hoodie.errortable.* hoodie.write.ignore.failed",
        ),
        ("hoodoo sends no metrics; use its events", "hoodie.metrics.*"),
        ("hoodoo has no streamer", "hoodie.streamer.* hoodie.deltastreamer.* hoodie.kafka.*"),
        (
            (
                "SQL statements of this kind are not run here, use the option "
                "hoodie.datasource.write.operation"
            ),
            "hoodie.sql.* hoodie.spark.sql.*",
        ),
        (
            "a bulk insert does not sort; cluster the table by sort columns",
            "hoodie.bulkinsert.sort.* hoodie.bulkinsert.user.defined.partitioner.sort.columns",
        ),
        (
            "Java classes are not loaded",
            """hoodie.client.init.callback.classes hoodie.compact.merge.handle.class
            hoodie.compaction.plan.generator hoodie.fileid.prefix.provider.class
            hoodie.record.size.estimator.class hoodie.storage.class hoodie.io.factory.class
            hoodie.avro.write.support.class hoodie.parquet.flink.rowdata.write.support.class
            hoodie.parquet.spark.row.write.support.class hoodie.write.concat.handle.class
            hoodie.write.merge.handle.class hoodie.writestatus.class""",
        ),
        (
            "bootstrapped tables are not written",
            "hoodie.bootstrap.* hoodie.clean.delete.bootstrap.*",
        ),
        ("the number of buckets does not change", "hoodie.bucket.index.*"),
        (
            "rows take the table's schema; give the rows the types that you want",
            "hoodie.write.schema hoodie.avro.schema hoodie.bulkinsert.schema.ddl",
        ),
        (
            (
                "hoodoo uses no service manager; 'hoodoo services worker' runs services "
                "in another process"
            ),
            "hoodie.table.service.manager.*",
        ),
        ("hoodoo uses no metaserver", "hoodie.metaserver.*"),
        ("checks before a commit are not run", "hoodie.precommit.validators.*"),
        (
            "expression indexes and secondary indexes are not supported",
            "hoodie.expression.index.* hoodie.index.name hoodie.datasource.write.secondarykey.column",
        ),
        (
            (
                "a batch of a stream is known by its query and number, and one that fails ends the "
                "query"
            ),
            "hoodie.datasource.write.streaming.*",
        ),
        (
            "a range returns the changes in its files, and never falls back to a full scan",
            "hoodie.datasource.read.incr.fallback.fulltablescan.enable",
        ),
        (
            "ranges are read in the form of the table's own version",
            (
                "hoodie.datasource.read.incr.table.version "
                "hoodie.datasource.read.streaming.table.version"
            ),
        ),
        (
            (
                "a load returns the table's rows; use 'hoodoo timeline show' and 'hoodoo "
                "files' for the rest"
            ),
            (
                "hoodie.datasource.read.table.valued.function.* "
                "hoodie.datasource.read.create.filesystem.relation"
            ),
        ),
        (
            "partition columns are read as files and folders have them",
            (
                "hoodie.datasource.read.extract.partition.values.from.path "
                "hoodie.datasource.read.partition.value.extractor.enabled"
            ),
        ),
        ("blobs are returned as stored", "hoodie.read.blob.inline.mode"),
        ("holes of a timeline are resolved by its slots", "hoodie.read.timeline.holes.*"),
        (
            "a failed service after a write is a warning; the write is committed",
            "hoodie.fail.writes.on.inline.table.service.exception hoodie.fail.on.timeline.archiving",
        ),
        ("only 'hoodoo table upgrade' upgrades a table", "hoodie.write.auto.upgrade"),
        ("a batch without rows commits an instant", "hoodie.allow.empty.commit"),
        (
            "an insert keeps rows of equal keys apart; use upsert to merge them",
            "hoodie.merge.allow.duplicate.on.inserts",
        ),
        (
            "the configured lock is used",
            "hoodie.auto.adjust.lock.configs hoodie.fs.atomic_creation.support",
        ),
        ("a compaction covers all partitions", "hoodie.compaction.partition.path.regex"),
        (
            "cleans have no such limit or record",
            (
                "hoodie.clean.max.commits.to.clean "
                "hoodie.write.empty.clean.interval.hours hoodie.prewrite.cleaner.policy"
            ),
        ),
        (
            "clustering chooses files by size and partition",
            "hoodie.clustering.plan.strategy.earliest.commit.to.cluster hoodie.layout.optimize.enable",
        ),
        ("a rollback keeps no backup of files", "hoodie.rollback.instant.backup.*"),
        (
            "hoodoo does not record event times",
            "hoodie.payload.event.time.field hoodie.write.track.event.time.watermark",
        ),
        ("a commit has its own metadata only", "hoodie.write.rolling.metadata.*"),
        ("secrets are hidden by the names of their keys", "hoodie.sensitive.config.keys"),
        (
            "tasks that run twice are always refused",
            "hoodie.block.writes.on.speculative.execution",
        ),
        (
            "a schema change of another writer is always a conflict",
            "hoodie.write.concurrency.schema.conflict.resolution.enable",
        ),
        ("keys are always checked", "hoodie.write.complex.keygen.validation.enable"),
        ("timestamps are written in UTC", "hoodie.parquet.write.utc-timezone.enabled"),
        ("columns of files have no ids", "hoodie.parquet.field_id.write.enabled"),
        (
            "the operation of a write chooses what it replaces",
            "hoodie.bulkinsert.overwrite.operation.type",
        ),
        ("record indexes are not maintained", "hoodie.record.index.update.partition.path"),
        (
            "written rows are not read again",
            "hoodie.merge.data.validation.enabled hoodie.fail.job.on.duplicate.data.file.detection",
        ),
        (
            "the table's own properties have this; no option sets it",
            """hoodie.archivelog.folder hoodie.timeline.path
            hoodie.timeline.history.path hoodie.table.create.schema hoodie.table.index.defs.path
            hoodie.table.initial.version hoodie.table.legacy.payload.class
            hoodie.table.log.file.format hoodie.table.metadata.partitions
            hoodie.table.metadata.partitions.inflight hoodie.table.secondary.indexes.metadata
            hoodie.table.checksum""",
        ),
    )
)

#: Booleans of ``WARNED`` for which hoodoo behaves as with true.
_TRUE_HERE: Final = frozenset(
    {
        "hoodie.allow.empty.commit",
        "hoodie.merge.allow.duplicate.on.inserts",
        "hoodie.block.writes.on.speculative.execution",
        "hoodie.parquet.write.utc-timezone.enabled",
        "hoodie.write.complex.keygen.validation.enable",
        "hoodie.write.concurrency.schema.conflict.resolution.enable",
    }
)

#: By key or family, why the key needs no effect.
WITHOUT_EFFECT: Final = _patterns(
    (
        (
            "the machine or Spark's own settings choose the number of tasks",
            """hoodie.archive.delete.parallelism hoodie.bulkinsert.shuffle.parallelism
            hoodie.clean.parallelism hoodie.clustering.group.read.parallelism
            hoodie.clustering.max.parallelism hoodie.delete.shuffle.parallelism
            hoodie.file.listing.parallelism hoodie.finalize.write.parallelism
            hoodie.global.index.reconcile.parallelism hoodie.global.simple.index.parallelism
            hoodie.insert.shuffle.parallelism hoodie.markers.delete.parallelism
            hoodie.rollback.parallelism hoodie.simple.index.parallelism
            hoodie.bloom.index.parallelism hoodie.bootstrap.parallelism
            hoodie.errortable.insert.shuffle.parallelism
            hoodie.errortable.upsert.shuffle.parallelism
            hoodie.clean.optimize.using.local.engine.context
            hoodie.clustering.plan.generation.use.local.engine.context
            hoodie.bucket.index.remote.partitioner.enable""",
        ),
        (
            "a file group bounds memory, caches and buffers",
            """hoodie.memory.* hoodie.common.spillable.diskmap.type
            hoodie.common.diskmap.compression.enabled hoodie.file.index.cache.*
            hoodie.hfile.block.cache.* hoodie.bloom.index.input.storage.level
            hoodie.bloom.index.use.caching hoodie.simple.index.input.storage.level
            hoodie.simple.index.use.caching hoodie.record.index.input.storage.level
            hoodie.record.index.use.caching hoodie.write.status.storage.level
            hoodie.write.tagged.record.storage.level hoodie.write.buffer.*
            hoodie.write.executor.* hoodie.cdc.file.group.iterator.memory.spill.bytes
            hoodie.release.resource.on.completion.enable hoodie.errortable.source.rdd.persist""",
        ),
        (
            "there is no timeline server and no file system view to tune",
            """hoodie.embed.timeline.server* hoodie.filesystem.view.*
            hoodie.filesystem.remote.backup.view.enable hoodie.write.markers.type
            hoodie.markers.timeline_server_based.*""",
        ),
        (
            "hoodoo has one way to write and merge rows",
            """hoodie.datasource.write.row.writer.enable hoodie.file.group.reader.enabled
            hoodie.write.merge.handle.fallback hoodie.merge.use.record.positions
            hoodie.write.record.positions hoodie.compaction.lazy.block.read
            hoodie.compaction.reverse.log.read hoodie.combine.before.delete
            hoodie.clustering.plan.strategy.binary.copy.schema.evolution.enable
            hoodie.rollback.using.markers hoodie.rollback.avoid.duplicate.plan
            hoodie.skip.default.partition.validation""",
        ),
        (
            "the way to find files does not change the rows of an answer",
            """hoodie.enable.data.skipping hoodie.file.index.enable
            hoodie.layout.optimize.data.skipping.enable hoodie.bucket.index.query.pruning
            hoodie.datasource.read.file.index.* hoodie.datasource.read.incr.skip_cluster
            hoodie.datasource.read.incr.skip_compact""",
        ),
        (
            "the way to search filters does not change the keys that are found",
            """hoodie.bloom.index.bucketized.* hoodie.bloom.index.fileid.key.sorting.enable
            hoodie.bloom.index.keys.per.bucket hoodie.bloom.index.prune.by.ranges
            hoodie.bloom.index.use.treebased.filter hoodie.bloom.index.use.metadata""",
        ),
        (
            (
                "it concerns base files of another format or the metadata table, which "
                "are not written"
            ),
            """hoodie.hfile.* hoodie.orc.* hoodie.lance.* hoodie.metadata.max.*
            hoodie.metadata.repartition.*
            hoodie.metadata.range.repartition.* hoodie.metadata.spillable.map.path
            hoodie.metadata.file.cache.max.size.mb hoodie.metadata.compact.*
            hoodie.metadata.bloom.filter.* hoodie.metadata.derive.from.datatable.clean.policy
            hoodie.metadata.index.bloom.filter.parallelism
            hoodie.metadata.index.column.stats.parallelism
            hoodie.metadata.index.expression.parallelism
            hoodie.metadata.index.partition.stats.parallelism
            hoodie.metadata.index.secondary.parallelism
            hoodie.metadata.record.preparation.parallelism""",
        ),
        (
            "sizes are estimated from commits",
            """hoodie.parquet.compression.ratio hoodie.logfile.to.parquet.compression.ratio
            hoodie.record.size.estimation.threshold
            hoodie.record.size.estimator.average.metadata.size
            hoodie.layout.optimize.build.curve.sample.size
            hoodie.layout.optimize.curve.build.method""",
        ),
        (
            "the commit protocol does this without a setting",
            """hoodie.time.generator.* hoodie.write.concurrency.async.conflict.detector.*
            hoodie.write.concurrency.early.conflict.check.commit.conflict
            hoodie.consistency.check.* hoodie.optimistic.consistency.guard.*
            hoodie.clean.multiple.enabled hoodie.commits.archival.batch
            hoodie.timeline.manifest.retained.versions hoodie.table.services.incremental.enabled
            hoodie.write.can.ignore.post.commit.failures""",
        ),
        ("the call gives the path", "hoodie.base.path"),
        ("internal switches of Java Hudi", "_.hoodie.allow.multi.write.on.same.instant _hoodie.*"),
    )
)


def effect_of(key: str, declared: Container[str]) -> KeyEffect:
    """
    Return the effect of a key, in any case and by any of Hudi's names for it.

    Args:
        key: The key as spelled.
        declared: Every spelling of an option that hoodoo reads, in lower case.
    """
    folded = main_key(key).casefold()
    for refused in (UNSUPPORTED, UNSUPPORTED_READS):
        rule = refused.get(folded)
        if rule is not None:
            return KeyEffect(effect=Effect.REFUSED, why=rule.reason)
    if folded in _DONE_ELSE:
        return KeyEffect(effect=Effect.WARNED, why=WARNED[_longest(folded, WARNED)])
    if key.casefold() in declared or folded in declared:
        return KeyEffect(effect=Effect.DONE)
    warned, silent = _longest(folded, WARNED), _longest(folded, WITHOUT_EFFECT)
    if len(silent) > len(warned):
        return KeyEffect(effect=Effect.NONE, why=WITHOUT_EFFECT[silent])
    if warned:
        return KeyEffect(effect=Effect.WARNED, why=WARNED[warned])
    return KeyEffect(effect=Effect.UNKNOWN)


#: Keys with a warning for one value, done for the other.
_DONE_ELSE: Final = frozenset({"hoodie.metadata.enable", "hoodie.merge.allow.duplicate.on.inserts"})


def effect_of_value(key: str, value: str, declared: Container[str]) -> KeyEffect:
    """Return the effect of a key with this value; a value that requests nothing is accepted."""
    found, folded = effect_of(key, declared), main_key(key).casefold()
    if found.effect is Effect.REFUSED:
        rule = UNSUPPORTED.get(folded) or UNSUPPORTED_READS[folded]
        is_asked = bool(value.strip()) and value.strip().casefold() not in rule.accepted
    elif found.effect is Effect.WARNED:
        is_asked = _asks(key, value)
    else:
        return found
    if is_asked:
        return found
    done = key.casefold() in declared
    return KeyEffect(effect=Effect.DONE if done else Effect.NONE)


def key_warnings(properties: PropertySet, declared: Collection[str]) -> tuple[str, ...]:
    """
    Return warnings about misspelled keys and keys that request something not supported.

    It checks only keys that begin with ``hoodie.`` or ``hoodoo.``, with or without ``spark.``
    before it, and not a table's own properties.

    Args:
        properties: The given properties.
        declared: Every spelling of an option that hoodoo reads, in lower case.

    Returns:
        One text for each reason, with its keys; then one for each unknown key.
    """
    by_reason: dict[str, list[str]] = {}
    unknown = []
    for key, value in given_keys(properties):
        layer = properties.layer_of(key)
        found = effect_of_value(key, value, declared)
        if found.effect is Effect.WARNED:
            by_reason.setdefault(found.why, []).append(f"{key} (from {layer})")
        elif found.effect is Effect.UNKNOWN:
            near = nearest_key(key, declared)
            hint = f", did you mean {near}" if near else ""
            unknown.append(f"unknown property, it is ignored{hint}: {key} (from {layer})")
    told = (f"no effect here, {why}: {', '.join(keys)}" for why, keys in by_reason.items())
    return (*told, *unknown)


def keys_without_effect(properties: PropertySet, declared: Container[str]) -> Mapping[str, str]:
    """Return the given keys without effect by design, and the reasons."""
    found = {key: effect_of_value(key, value, declared) for key, value in given_keys(properties)}
    return {key: one.why for key, one in found.items() if one.effect is Effect.NONE}


#: Outside a Spark session ``spark.hoodie.x`` is no key of Hudi, but the user means one.
_JUDGED: Final = (*OWN_PREFIXES, *(SESSION_PREFIX + prefix for prefix in OWN_PREFIXES))


def given_keys(properties: PropertySet) -> Iterable[tuple[str, str]]:
    """Return the caller's keys of hoodoo and Hudi, without those of a table's own file."""
    callers = properties.without_layer(TABLE_LAYER).items()
    return ((key, text) for key, text in callers if key.casefold().startswith(_JUDGED))


def _asks(key: str, value: str) -> bool:
    """Return whether the value of a key with a warning requests something."""
    folded, text = main_key(key).casefold(), value.strip().casefold()
    if text in ("true", "false"):
        return text != ("true" if folded in _TRUE_HERE else "false")
    known = hudi_keys().get(folded)
    return bool(text) and (known is None or text != (known.default or "").casefold())


def _longest(key: str, table: Mapping[str, str]) -> str:
    """Return the pattern of a table that fits a lower-case key best, empty if none does."""
    fitting = (
        pattern
        for pattern in table
        if key == pattern.casefold()
        or (pattern.endswith("*") and key.startswith(pattern[:-1].casefold()))
    )
    return max(fitting, key=len, default="")
