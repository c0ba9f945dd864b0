"""
Every key of Hudi, and the effect it has here: done, refused, warned about, or none by design.

``hudi_keys.json`` lists the keys of Hudi 1.2 with default, older spellings and a line of
explanation, ``key_effects.json`` the keys of ``WARNED`` and ``WITHOUT_EFFECT``. These and
``UNSUPPORTED`` say what becomes of a key that no option reads. A key of ``UNSUPPORTED`` would
change the table or the result of a read: it is refused by name. A key of ``WARNED`` requests
something that hoodoo does not do; the user gets a warning. A key of ``WITHOUT_EFFECT`` changes no
row, no file and no promise, whatever its value. A pattern that ends in ``*`` matches a family; the
longest matching pattern counts.
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
from typing import Any, Final

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


def _data(file: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(files(__package__).joinpath(file).read_text("utf-8"))
    return found


@cache
def hudi_keys() -> Mapping[str, KnownKey]:
    """Return Hudi's keys by each spelling, in lower case."""
    found: dict[str, KnownKey] = {}
    for key, (default, aliases, doc) in _data("hudi_keys.json").items():
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
    "this index is not supported; use SIMPLE, BLOOM, GLOBAL_SIMPLE, GLOBAL_BLOOM, BUCKET or "
    "RECORD_INDEX"
)
_PARQUET_ONLY: Final = "base files are written as Parquet only"

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
        "hoodie.index.type": _only(*(index.value for index in IndexType), reason=_NO_INDEX),
        "hoodie.index.class": _unset("custom indexes are not supported"),
        # schema
        "hoodie.internal.schema": _unset("the table's own commits have the ids of its columns"),
        "hoodie.avro.schema.external.transformation": _off("schemas are not transformed"),
        "hoodie.parquet.write.config.injector.class": _unset("injected classes are not run"),
        # the write
        "hoodie.bulkinsert.user.defined.partitioner.class": _unset(
            "custom partitioners are not run"
        ),
        "hoodie.precommit.validators": _unset(
            "checks before a commit are not run; check the rows before the write, and omit the option"
        ),
    }
)

#: By Hudi's present key: unsupported options that would change the result of a read.
UNSUPPORTED_READS: Final[Mapping[str, UnsupportedRule]] = MappingProxyType(
    {
        "hoodie.datasource.merge.type": _only(
            "payload_combine",
            reason="only spark.read.option(..).load() can skip the merge; use payload_combine",
        ),
        "hoodie.datasource.read.schema.use.end.instanttime": _off(
            "a range is read with the newest schema; name the columns that you want"
        ),
        "hoodie.datasource.read.paths": _unset(
            "only spark.read.option(..).load() takes several paths; pass partitions elsewhere"
        ),
        "hoodie.datasource.read.incr.path.glob": _unset(
            "only spark.read.option(..).load() takes a pattern; filter by the partition columns"
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


def _patterns(effect: str) -> Mapping[str, str]:
    """Return the reason of each key or family with an effect, from ``key_effects.json``."""
    reasons = _data("key_effects.json")[effect]
    return MappingProxyType({key: why for why, keys in reasons.items() for key in keys})


#: By key or family, the reason of a warning. A boolean key causes it if true, another key if its
#: value differs from Hudi's default.
WARNED: Final = _patterns("warned")

#: By key or family, why the key needs no effect.
WITHOUT_EFFECT: Final = _patterns("without_effect")

#: Booleans of ``WARNED`` for which hoodoo behaves as with true.
_TRUE_HERE: Final = frozenset(
    {
        "hoodie.allow.empty.commit",
        "hoodie.merge.allow.duplicate.on.inserts",
        "hoodie.block.writes.on.speculative.execution",
        "hoodie.metadata.auto.initialize",
        "hoodie.parquet.write.utc-timezone.enabled",
        "hoodie.write.complex.keygen.validation.enable",
        "hoodie.write.concurrency.schema.conflict.resolution.enable",
    }
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
    warned, ineffective = _longest(folded, WARNED), _longest(folded, WITHOUT_EFFECT)
    if len(ineffective) > len(warned):
        return KeyEffect(effect=Effect.NONE, why=WITHOUT_EFFECT[ineffective])
    if warned:
        return KeyEffect(effect=Effect.WARNED, why=WARNED[warned])
    return KeyEffect(effect=Effect.UNKNOWN)


#: Keys with a warning for one value, done for the other.
_DONE_ELSE: Final = frozenset({"hoodie.merge.allow.duplicate.on.inserts"})


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
    ineffective = (f"no effect here, {why}: {', '.join(keys)}" for why, keys in by_reason.items())
    return (*ineffective, *unknown)


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
