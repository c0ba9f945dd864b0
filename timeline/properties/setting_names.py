"""
The closed sets of names a setting may have, and what Hudi's names for them mean here.

Java class names are translated by these fixed tables; no class is ever loaded by a name
found in a property (SEC4). A name that is not in the tables is refused by name, because
guessing would write other keys or keep other rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final, NoReturn, TypeVar

from timeline.errors import SettingError
from timeline.model.merge_definition import MERGE_STRATEGY_IDS, known_payloads
from timeline.model.operations import MergeMode
from timeline.properties.options import Option, PropertySet, parse_option
from timeline.rules.keys import KeyGenerator

__all__ = [
    "BloomType",
    "ClusteringUpdates",
    "Durability",
    "EarlyDetection",
    "FailedWritesPolicy",
    "ForeignWriters",
    "IncrementalFormat",
    "IndexType",
    "InsertDuplicates",
    "OverwriteMode",
    "PublishLock",
    "QueryType",
    "key_generator_of",
    "merge_mode_of",
]


class FailedWritesPolicy(Enum):
    """Who undoes a failed write."""

    EAGER = "EAGER"
    LAZY = "LAZY"
    NEVER = "NEVER"


class PublishLock(Enum):
    """When a publication takes the lock: always, after two lost slots, never."""

    LOCK = "lock"
    AUTO = "auto"
    NONE = "none"


class ForeignWriters(Enum):
    """Whether engines that know no slots write the table too (FOR-1)."""

    NONE = "none"
    EXPECTED = "expected"


_UPDATES: Final = "org.apache.hudi.client.clustering.update.strategy."
_MARKERS: Final = "org.apache.hudi.table.marker."


class ClusteringUpdates(Enum):
    """What a write does that meets a file group of a pending clustering (CL-2)."""

    ALLOW = f"{_UPDATES}SparkAllowUpdateStrategy"  # it goes on, and the clustering yields
    REJECT = f"{_UPDATES}SparkRejectUpdateStrategy"  # it is refused


class EarlyDetection(Enum):
    """What a write looks at before it writes files; Hudi's classes compare announcements."""

    PUBLISHED = "published"
    ANNOUNCED = "announced"
    SIMPLE_MARKERS = f"{_MARKERS}SimpleDirectMarkerBasedDetectionStrategy"
    LOCKED_MARKERS = f"{_MARKERS}SimpleTransactionDirectMarkerBasedDetectionStrategy"
    SERVER_MARKERS = (
        "org.apache.hudi.timeline.service.handlers.marker.AsyncTimelineServerBasedDetectionStrategy"
    )

    @property
    def gives_way(self) -> bool:
        """Whether what living writers announced counts."""
        return self is not EarlyDetection.PUBLISHED


class Durability(Enum):
    """Whether a publication survives a power cut (LOC-2)."""

    STRICT = "strict"
    RELAXED = "relaxed"


class IndexType(Enum):
    """How rows find their file group; all are exact."""

    SIMPLE = "SIMPLE"
    BLOOM = "BLOOM"
    GLOBAL_SIMPLE = "GLOBAL_SIMPLE"
    GLOBAL_BLOOM = "GLOBAL_BLOOM"
    BUCKET = "BUCKET"

    @property
    def is_global(self) -> bool:
        """Whether a key is unique in the whole table, not in its partition alone."""
        return self in (IndexType.GLOBAL_SIMPLE, IndexType.GLOBAL_BLOOM)


class BloomType(Enum):
    """Form of the bloom filter in a base file's footer."""

    DYNAMIC_V0 = "DYNAMIC_V0"
    SIMPLE = "SIMPLE"


class InsertDuplicates(Enum):
    """What an insert does with keys that the table has."""

    NONE = "none"
    DROP = "drop"
    FAIL = "fail"


class OverwriteMode(Enum):
    """What save mode overwrite replaces: the whole table, or the partitions it meets."""

    STATIC = "STATIC"
    DYNAMIC = "DYNAMIC"


class QueryType(Enum):
    """Which rows a read returns."""

    SNAPSHOT = "snapshot"
    READ_OPTIMIZED = "read_optimized"
    INCREMENTAL = "incremental"


class IncrementalFormat(Enum):
    """Rows at the end of the range, or every change in it."""

    LATEST_STATE = "latest_state"
    CDC = "cdc"


T = TypeVar("T")

_GENERATOR_TYPES: Final[Mapping[str, KeyGenerator]] = MappingProxyType(
    {
        name + suffix: generator
        for name, generator in KeyGenerator.__members__.items()
        for suffix in ("", "_AVRO")
    }
)
_GENERATOR_CLASSES: Final[Mapping[str, KeyGenerator]] = MappingProxyType(
    {
        f"org.apache.hudi.keygen.{name}KeyGenerator": generator
        for name, generator in {
            "Simple": KeyGenerator.SIMPLE,
            "SimpleAvro": KeyGenerator.SIMPLE,
            "Complex": KeyGenerator.COMPLEX,
            "ComplexAvro": KeyGenerator.COMPLEX,
            "Nonpartitioned": KeyGenerator.NON_PARTITION,
            "NonpartitionedAvro": KeyGenerator.NON_PARTITION,
            "TimestampBased": KeyGenerator.TIMESTAMP,
            "TimestampBasedAvro": KeyGenerator.TIMESTAMP,
            "Custom": KeyGenerator.CUSTOM,
            "CustomAvro": KeyGenerator.CUSTOM,
            "GlobalDelete": KeyGenerator.GLOBAL_DELETE,
            "GlobalAvroDelete": KeyGenerator.GLOBAL_DELETE,
        }.items()
    }
)
_PAYLOADS: Final[Mapping[str, MergeMode]] = MappingProxyType(
    {name: definition.mode for name, definition in known_payloads().items()}
)
_MODES: Final[Mapping[str, MergeMode]] = MappingProxyType(
    {mode.value: mode for mode in (MergeMode.COMMIT_TIME_ORDERING, MergeMode.EVENT_TIME_ORDERING)}
)
_STRATEGIES: Final[Mapping[str, MergeMode]] = MappingProxyType(
    {MERGE_STRATEGY_IDS[mode]: mode for mode in _MODES.values()}
)


def key_generator_of(
    properties: PropertySet, by_type: Option, by_class: Option
) -> KeyGenerator | None:
    """
    The key generator that was asked for by type or by class name; None when by neither.

    Raises:
        SettingError: The name stands for a generator that this release does not have, or
            type and class name different ones.
    """
    found = [
        _translate(properties, by_type, _GENERATOR_TYPES, "this key generator"),
        _translate(properties, by_class, _GENERATOR_CLASSES, "this key generator"),
    ]
    return _one_of(properties, (by_type, by_class), found)


#: Names of the strategy before Hudi 1.0, where its default leaves the choice to the payload class.
_STRATEGY_OF_OLD: Final = frozenset(
    {"hoodie.datasource.write.record.merger.strategy", "hoodie.compaction.record.merger.strategy"}
)


def merge_mode_of(
    properties: PropertySet, by_mode: Option, by_payload: Option, by_strategy: Option
) -> MergeMode | None:
    """
    The merge mode that was asked for by name, payload class or strategy id; None when by none.

    Raises:
        SettingError: A custom merge was asked for, or the three contradict each other.

    Spec: fmt 1.5.
    """
    mode = _translate(properties, by_mode, _MODES, "this merge mode")
    payload = _translate(properties, by_payload, _PAYLOADS, "this payload class")
    strategy = _translate(properties, by_strategy, _STRATEGIES, "this merge strategy")
    said = properties.find(by_strategy)
    if said is not None and said[0] in _STRATEGY_OF_OLD and (mode or payload):
        strategy = None
    return _one_of(properties, (by_mode, by_payload, by_strategy), [mode, payload, strategy])


def _translate(
    properties: PropertySet, option: Option, names: Mapping[str, T], what: str
) -> T | None:
    said = properties.find(option)
    if said is None or not said[1]:
        return None
    key, text, layer = said
    value = parse_option(option, text, key=key, layer=layer)
    for name, meaning in names.items():
        if name.casefold() == str(value).casefold():
            return meaning
    accepted = ", ".join(names)
    raise SettingError(
        f"{what} is not supported, use one of {accepted}: {key}={text} (from {layer})",
        kind="unsupported_setting",
        key=key,
        value=text,
        layer=layer,
        suggestion=accepted,
    )


def _one_of(
    properties: PropertySet, options: tuple[Option, ...], found: list[T | None]
) -> T | None:
    meanings = [
        (option, meaning)
        for option, meaning in zip(options, found, strict=True)
        if meaning is not None
    ]
    for option, meaning in meanings[1:]:
        if meaning != meanings[0][1]:
            _refuse_pair(properties, meanings[0][0], option)
    return meanings[0][1] if meanings else None


def _refuse_pair(properties: PropertySet, one: Option, other: Option) -> NoReturn:
    first = properties.find(one) or (one.key, "", "")
    second = properties.find(other) or (other.key, "", "")
    raise SettingError(
        f"two properties contradict each other, keep one of them: {first[0]}={first[1]} "
        f"(from {first[2]}) and {second[0]}={second[1]} (from {second[2]})",
        kind="setting_contradiction",
        key=second[0],
        value=second[1],
        layer=second[2],
        suggestion=f"remove {second[0]} or {first[0]}",
    )
