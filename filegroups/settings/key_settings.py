"""
Options that are facts of a table: type, keys, partitions, merging, index; and their values.

They are fixed when a table is created, stored in its properties and equal for all writers. Names
of generators, payloads and time formats are translated by fixed tables: no class is loaded by a
name from a property. A name outside the tables is refused, because a guess would write other keys
or keep other rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from pydantic import Field

from filegroups.keys.generators import KeyGenerator, TimestampKeys, infer_key_generator
from filegroups.settings.time_settings import TimeSettings, times_unless_unknown
from timeline.errors import SettingError
from timeline.model.commit_metadata import CdcMode, MergeMode, TableType
from timeline.model.merge_definition import (
    MERGE_STRATEGY_IDS,
    MOVED_PAYLOADS,
    MergeDefinition,
    PartialUpdateMode,
    definition_of_payload,
    known_payloads,
)
from timeline.properties.options import (
    DEFAULT_LAYER,
    TABLE_LAYER,
    LayeredSettings,
    PropertySet,
    option,
    parse_option,
)
from timeline.properties.setting_enums import BucketEngine, IndexType

if TYPE_CHECKING:
    from filegroups.keys.keys import KeySpec
    from timeline.model.table_config import TableConfig


#: Hudi's other indexes: known, and refused by ``known_keys.UNSUPPORTED``.
_OTHER_INDEXES: Final = ("INMEMORY", "FLINK_STATE")
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
        f"org.apache.hudi.keygen.{name.format(avro)}KeyGenerator": generator
        for name, generator in {
            "Simple{}": KeyGenerator.SIMPLE,
            "Complex{}": KeyGenerator.COMPLEX,
            "Nonpartitioned{}": KeyGenerator.NON_PARTITION,
            "TimestampBased{}": KeyGenerator.TIMESTAMP,
            "Custom{}": KeyGenerator.CUSTOM,
            "Global{}Delete": KeyGenerator.GLOBAL_DELETE,
        }.items()
        for avro in ("", "Avro")
    }
)
_PAYLOADS: Final[Mapping[str, MergeMode]] = MappingProxyType(
    {name: definition.mode for name, definition in known_payloads().items()}
    | {old: known_payloads()[new].mode for old, new in MOVED_PAYLOADS.items()}
)
_MODES: Final[Mapping[str, MergeMode]] = MappingProxyType(
    {mode.value: mode for mode in (MergeMode.COMMIT_TIME_ORDERING, MergeMode.EVENT_TIME_ORDERING)}
)
_STRATEGIES: Final[Mapping[str, MergeMode]] = MappingProxyType(
    {MERGE_STRATEGY_IDS[mode]: mode for mode in _MODES.values()}
)
#: Names of the strategy before Hudi 1.0; there its default lets the payload class decide.
_STRATEGY_OF_OLD: Final = frozenset(
    {"hoodie.datasource.write.record.merger.strategy", "hoodie.compaction.record.merger.strategy"}
)


class KeySettings(LayeredSettings):
    """The facts of a table that writers set: name, type, keys, partitions, merging, index."""

    table_name: str | None = option(
        "hoodie.table.name",
        None,
        "Name of the table.",
        aliases=("hoodie.datasource.write.table.name",),
    )
    database: str | None = option(
        "hoodie.database.name",
        None,
        "Database of the table, for catalogs. A table without one has the name "
        "default, and every writer may write to it.",
    )
    table_type: TableType = option(
        "hoodie.datasource.write.table.type",
        TableType.COPY_ON_WRITE,
        "How updates are stored.",
        aliases=("hoodie.table.type", "hoodie.datasource.write.storage.type"),
    )
    timeline_zone: str = option(
        "hoodie.table.timeline.timezone",
        "UTC",
        "Zone of the instant times of a new table: UTC, equal on all machines, or "
        "LOCAL (Hudi's default), the TZ of each process.",
        choices=("UTC", "LOCAL"),
    )
    table_version: int = option(
        "hoodie.write.table.version",
        9,
        "Table version on disk: 9, or 8 for readers of Hudi 1.0.",
        aliases=("hoodie.table.version",),
    )
    record_key_fields: tuple[str, ...] = option(
        "hoodie.datasource.write.recordkey.field",
        (),
        "Fields that identify a row; none for a table that only receives inserts.",
        aliases=("hoodie.table.recordkey.fields",),
    )
    partition_fields: tuple[str, ...] = option(
        "hoodie.datasource.write.partitionpath.field",
        (),
        "Fields that choose the folder of a row; none for a table without partitions."
        " With key generator CUSTOM, add the type to each field: "
        "region:SIMPLE,ts:TIMESTAMP.",
        aliases=("hoodie.table.partition.fields",),
    )
    ordering_fields: tuple[str, ...] = option(
        "hoodie.datasource.write.precombine.field",
        (),
        "Ordering fields: of two rows of one key, the row with the greater value wins.",
        aliases=(
            "hoodie.table.ordering.fields",
            "hoodie.table.precombine.field",
            "hoodie.payload.ordering.field",
        ),
    )
    hive_style_partitioning: bool = option(
        "hoodie.datasource.write.hive_style_partitioning", False, "Name folders field=value."
    )
    url_encode_partitioning: bool = option(
        "hoodie.datasource.write.partitionpath.urlencode",
        False,
        "Percent-encode partition values in folder names.",
    )
    # None: chosen from the fields
    key_generator: KeyGenerator | None = None
    # of a CUSTOM key generator
    partition_types: tuple[str | None, ...] = ()
    timestamp_keys: TimestampKeys | None = None
    time_properties: Mapping[str, str] = Field(default_factory=dict)
    complex_key_bare: bool | None = option(
        "hoodie.write.complex.keygen.new.encoding",
        None,
        "In new tables of version 8, how a complex key of one field is stored: the "
        "bare value (true, the default, as in Hudi 0.14.1 to 1.0.2) or field:value "
        "(false, as in 0.14.0 and older). Version 9 has field:value only. The keys of"
        " an existing table decide; the other form is refused.",
    )
    consistent_timestamps: bool = option(
        "hoodie.datasource.write.keygenerator.consistent.logical.timestamp.enabled",
        False,
        "In new tables, keys and folders show a timestamp as the time of the writer's zone, to the "
        "millisecond (2023-03-10 12:30:00.0), instead of a number. The keys and folders of an "
        "existing table decide; the other form is refused.",
    )
    populate_meta_fields: bool = option(
        "hoodie.populate.meta.fields",
        True,
        "Store the meta columns in files. Without them, keys are computed from the "
        "key fields, and incremental reads are not possible.",
    )
    key_generator_type: str | None = option(
        "hoodie.datasource.write.keygenerator.type",
        None,
        "How record key and partition path are computed; chosen from the fields by default.",
        aliases=("hoodie.table.keygenerator.type",),
    )
    key_generator_class: str | None = option(
        "hoodie.datasource.write.keygenerator.class",
        None,
        "The key generator by its Java class name; known names are translated, and no"
        " class is loaded.",
        aliases=("hoodie.table.keygenerator.class",),
    )
    partition_metafile_base_format: bool = option(
        "hoodie.partition.metafile.use.base.format",
        False,
        "Write the metadata file of a partition as Parquet instead of text.",
    )
    drop_partition_columns: bool = option(
        "hoodie.datasource.write.drop.partition.columns",
        False,
        "Omit partition columns in files; reads return them as text, from the folder's name.",
    )
    change_logs: bool = option(
        "hoodie.table.cdc.enabled",
        False,
        "Write a change log with each base file that is rewritten.",
    )
    change_log_mode: CdcMode = option(
        "hoodie.table.cdc.supplemental.logging.mode",
        CdcMode.DATA_BEFORE_AFTER,
        "Images in change logs besides operation and key; readers find the missing "
        "ones in other files.",
    )
    # None: depends on whether there are ordering fields
    merge_mode: MergeMode | None = option(
        "hoodie.write.record.merge.mode",
        None,
        "How two rows of one key merge; by event time if ordering fields are given.",
        aliases=("hoodie.record.merge.mode",),
    )
    payload_class: str | None = option(
        "hoodie.datasource.write.payload.class",
        None,
        "The merge mode by its Java class name, as in older releases of Hudi.",
        aliases=("hoodie.compaction.payload.class",),
    )
    merge_strategy_id: str | None = option(
        "hoodie.write.record.merge.strategy.id",
        None,
        "The merge mode by its identifier; must fit the mode.",
        aliases=(
            "hoodie.record.merge.strategy.id",
            "hoodie.datasource.write.record.merger.strategy",
            "hoodie.compaction.record.merger.strategy",
        ),
    )
    merger_classes: tuple[str, ...] = option(
        "hoodie.write.record.merge.custom.implementation.classes",
        (),
        "Java class names that choose among the allowed plug-ins for one table "
        "(hoodoo.plugins.allow); no class is loaded.",
        aliases=("hoodie.datasource.write.record.merger.impls",),
    )
    delete_field: str | None = option(
        "hoodie.payload.delete.field",
        None,
        "Column that marks deletes; needs the marker.",
        aliases=("hoodie.record.merge.property.hoodie.payload.delete.field",),
    )
    delete_marker: str | None = option(
        "hoodie.payload.delete.marker",
        None,
        "Value of that column that means delete.",
        aliases=("hoodie.record.merge.property.hoodie.payload.delete.marker",),
    )
    partial_update_mode: str | None = option(
        "hoodie.table.partial.update.mode",
        None,
        "Values of the newer row that do not count: columns with their default, or "
        "with hoodie.write.partial.update.unavailable.value.",
        choices=("NONE", "IGNORE_DEFAULTS", "FILL_UNAVAILABLE"),
    )
    partial_update_schema: str | None = option(
        "hoodie.write.partial.update.schema",
        None,
        "An Avro schema with the columns that upserts change; records keep all "
        "others. The rows also need key, partition and ordering fields.",
    )
    unavailable_marker: str | None = option(
        "hoodie.write.partial.update.unavailable.value",
        None,
        "Text that means, with FILL_UNAVAILABLE: keep the older value.",
        aliases=("hoodie.record.merge.property.hoodie.write.partial.update.unavailable.value",),
    )
    index_type: IndexType = option(
        "hoodie.index.type",
        IndexType.SIMPLE,
        "How rows find their file group. BLOOM reads fewer files than SIMPLE, GLOBAL_"
        " ones search all partitions, BUCKET computes the file group from the key. "
        "RECORD_INDEX and GLOBAL_RECORD_LEVEL_INDEX use the record index of the metadata "
        "table, RECORD_LEVEL_INDEX one for each partition.",
        aliases=("hoodoo.index.type",),
        choices=(*(index.value for index in IndexType), *_OTHER_INDEXES),
    )
    bucket_engine: BucketEngine = option(
        "hoodie.index.bucket.engine",
        BucketEngine.SIMPLE,
        "Whether the number of buckets is fixed, or buckets are ranges of hashes that"
        " may split and merge.",
        aliases=("hoodoo.index.bucket.engine",),
    )
    bucket_count: Annotated[int, Field(ge=1, le=99_999_999)] = option(
        "hoodie.bucket.index.num.buckets",
        256,
        "Number of buckets of each partition; equal for all writers, and stored in "
        "the table's properties.",
        aliases=("hoodoo.bucket.index.num.buckets",),
    )
    bucket_hash_fields: tuple[str, ...] = option(
        "hoodie.bucket.index.hash.field",
        (),
        "Record key fields that choose the bucket; all of them by default.",
        aliases=("hoodoo.bucket.index.hash.field",),
    )

    @property
    def effective_merge_mode(self) -> MergeMode:
        """The merge mode; if none is given, event time if there are ordering fields (fmt 1.5)."""
        if self.merge_mode is not None:
            return self.merge_mode
        if self.ordering_fields:
            return MergeMode.EVENT_TIME_ORDERING
        return MergeMode.COMMIT_TIME_ORDERING

    @property
    def effective_key_generator(self) -> KeyGenerator:
        """The key generator; if none is given, the one that Hudi chooses."""
        if self.key_generator is not None:
            return self.key_generator
        if any(self.partition_types):
            return KeyGenerator.CUSTOM
        return infer_key_generator(len(self.record_key_fields), len(self.partition_fields))

    def refuse_contradicting_keys(self) -> None:
        """
        Refuse options of keys, partitions and merging that contradict each other.

        Raises:
            SettingError: Names the first of them.
        """
        for field in ("record_key_fields", "partition_fields", "ordering_fields"):
            names: tuple[str, ...] = getattr(self, field)
            if len(set(names)) != len(names):
                twice = "a field is named twice"
                self.refuse(field, twice, "name each field once", "setting_value")
        self._refuse_generator()
        if self.consistent_timestamps and not self.populate_meta_fields:
            self.refuse(
                "consistent_timestamps",
                "keys that files do not store show timestamps as numbers",
                "omit it, or store the meta columns",
            )
        left_out = set(self.partition_fields if self.drop_partition_columns else ())
        needed = set(self.ordering_fields)
        if not self.populate_meta_fields:
            needed.update(self.record_key_fields)
        if left_out & needed:
            self.refuse(
                "drop_partition_columns",
                "rows are compared by a column that files would omit",
                f"keep the columns, or partition by others: {sorted(left_out & needed)}",
            )
        if (self.delete_field is None) != (self.delete_marker is None):
            self.refuse(
                "delete_field" if self.delete_marker is None else "delete_marker",
                "a column that marks deletes needs its marker, and the marker its column",
                "set both or none",
                "setting_missing",
            )
        fills = self.partial_update_mode == PartialUpdateMode.FILL_UNAVAILABLE.value
        if fills and merge_definition_of_settings(self).unavailable_marker is None:
            self.refuse(
                "partial_update_mode",
                "no setting names the value that keeps the older one",
                f"set {self.options['unavailable_marker'].key}",
                "setting_missing",
            )

    def _refuse_generator(self) -> None:
        keys, partitions = len(self.record_key_fields), len(self.partition_fields)
        generator = self.key_generator
        single = (KeyGenerator.SIMPLE, KeyGenerator.TIMESTAMP)
        if generator in single and (keys > 1 or partitions > 1):
            self.refuse(
                "record_key_fields" if keys > 1 else "partition_fields",
                "this key generator takes one field for the key and one for the partition",
                "use key generator COMPLEX or CUSTOM, or omit it",
            )
        if generator in (KeyGenerator.NON_PARTITION, KeyGenerator.GLOBAL_DELETE) and partitions:
            self.refuse(
                "partition_fields",
                "the key generator is for tables without partitions",
                "omit one of the two",
            )
        types = set(self.partition_types)
        if generator not in (None, KeyGenerator.CUSTOM) and types - {None}:
            self.refuse(
                "partition_fields",
                "types of partition fields are for key generator CUSTOM",
                "omit them, or use CUSTOM",
            )
        if generator is KeyGenerator.CUSTOM and types - {"SIMPLE", "TIMESTAMP"}:
            self.refuse(
                "partition_fields",
                "key generator CUSTOM needs a type for each partition field",
                "write region:SIMPLE,ts:TIMESTAMP",
                "setting_value",
            )


#: By field, our own key in hoodie.properties: Hudi does not store what all writers must share.
BUCKET_PROPERTY_KEYS: Final = {
    field: KeySettings.options[field].aliases[0]
    for field in ("index_type", "bucket_engine", "bucket_count", "bucket_hash_fields")
}


def resolve_key_options(properties: PropertySet, values: dict[str, Any]) -> None:
    """
    Turn the texts of key and merge options into the fields of ``KeySettings``, in place.

    Args:
        properties: All layers.
        values: Option values by field, as read; gains ``key_generator``, ``merge_mode``,
            ``partition_types``, ``timestamp_keys`` and ``time_properties``.

    Raises:
        SettingError: A name is unknown, a pattern or zone is not valid, or two options contradict.
    """
    values["key_generator"] = _key_generator(properties)
    values["merge_mode"] = _merge_mode(properties)
    split = [field.partition(":") for field in values.get("partition_fields", ())]
    values["partition_fields"] = tuple(name.strip() for name, _, _ in split)
    values["partition_types"] = tuple(kind.strip().upper() or None for _, _, kind in split)
    times = {
        one.key: found[1]
        for one in TimeSettings.options.values()
        if (found := properties.find(one)) is not None and found[1]
    }
    values["time_properties"] = times
    values["timestamp_keys"] = times_unless_unknown(properties) if times else None


def _key_generator(properties: PropertySet) -> KeyGenerator | None:
    """
    Return the key generator given by type or by class name; None if neither is given.

    Raises:
        SettingError: This release does not have the generator, or type and class name differ.
    """
    what = "this key generator"
    names = {"key_generator_type": _GENERATOR_TYPES, "key_generator_class": _GENERATOR_CLASSES}
    return _one_of(
        properties,
        {field: _translate(properties, field, names[field], what) for field in names},
    )


def _merge_mode(properties: PropertySet) -> MergeMode | None:
    """
    Return the merge mode given by name, payload class or strategy id; None if none is given.

    Raises:
        SettingError: The mode is custom, or the three contradict each other.

    Spec: fmt 1.5.
    """
    mode = _translate(properties, "merge_mode", _MODES, "this merge mode")
    payload = _translate(properties, "payload_class", _PAYLOADS, "this payload class")
    strategy = _translate(properties, "merge_strategy_id", _STRATEGIES, "this merge strategy")
    setting = properties.find(KeySettings.options["merge_strategy_id"])
    if setting is not None and setting[0] in _STRATEGY_OF_OLD and (mode or payload):
        strategy = None
    found = {"merge_mode": mode, "payload_class": payload, "merge_strategy_id": strategy}
    return _one_of(properties, found)


def _translate(properties: PropertySet, field: str, names: Mapping[str, T], what: str) -> T | None:
    declared = KeySettings.options[field]
    setting = properties.find(declared)
    if setting is None or not setting[1]:
        return None
    key, text, layer = setting
    value = parse_option(declared, text, key=key, layer=layer)
    for name, meaning in names.items():
        if name.casefold() == str(value).casefold():
            return meaning
    accepted = ", ".join(names)
    why = f"{what} is not supported, use one of {accepted}"
    raise KeySettings.refusal(properties, field, why, accepted, kind="unsupported_setting")


def _one_of(properties: PropertySet, found: Mapping[str, T | None]) -> T | None:
    meanings = [(field, meaning) for field, meaning in found.items() if meaning is not None]
    for field, meaning in meanings[1:]:
        if meaning != meanings[0][1]:
            declared = KeySettings.options[meanings[0][0]]
            key, text, layer = properties.find(declared) or (declared.key, "", "")
            why = f"two properties contradict each other, keep this or {key}={text} (from {layer})"
            raise KeySettings.refusal(
                properties, field, why, f"remove it or {key}", kind="setting_contradiction"
            )
    return meanings[0][1] if meanings else None


def key_spec_of(settings: KeySettings, config: TableConfig) -> KeySpec:
    """
    Return how to make the keys of an existing table, from its properties and the settings.

    Settings supply only two facts, which Java Hudi does not store with the table: the time formats
    of a CUSTOM generator, and the encoding of a complex key of one field.
    """
    from filegroups.keys.keys import KeySpec  # needs numpy and pyarrow

    stored = (config.key_generator_type or "").removesuffix("_AVRO")
    if stored in KeyGenerator.__members__:
        generator = KeyGenerator[stored]
    else:
        generator = infer_key_generator(len(config.record_key_fields), len(config.partition_fields))
    types = config.partition_field_types
    if generator is KeyGenerator.CUSTOM and None in types:
        types = settings.partition_types
    bare = settings.complex_key_bare
    return KeySpec(
        record_key_fields=config.record_key_fields,
        partition_fields=config.partition_fields,
        partition_types=types,
        key_generator=generator,
        hive_style=config.hive_style_partitioning,
        url_encode=config.url_encode_partitioning,
        table_version=config.table_version,
        ordering_fields=config.ordering_fields if config.merge.orders else (),
        times=settings.timestamp_keys,
        prefixes_single_key=None if bare is None else not bare,
        shows_moments=settings.consistent_timestamps
        if settings.origin("consistent_timestamps") != DEFAULT_LAYER
        else None,
        stores_keys=config.populate_meta_fields,
    )


def refuse_other_classes(settings: KeySettings, config: TableConfig) -> None:
    """
    Refuse Java classes and ids that mean another rule than the table's, as Java does.

    The payload class the table was made with is accepted: version 9 reads some in another mode.

    Raises:
        SettingError: ``kind`` ``setting_against_table``.
    """
    meant = _meanings(settings, config)
    for field, (mine, theirs) in meant.items():
        layer, key = settings.origin(field), KeySettings.options[field].key
        if layer in (DEFAULT_LAYER, TABLE_LAYER) or mine in (None, theirs):
            continue
        raise SettingError(
            f"the table was made with another value: {key} (from {layer}) means {mine.value}, the "
            f"table has {theirs.value}; omit the option, or write to another table",
            kind="setting_against_table",
            key=key,
            layer=layer,
            suggestion=theirs.value,
        )


def _meanings(settings: KeySettings, config: TableConfig) -> dict[str, tuple[Any, Any]]:
    """Return for each option what the caller's class means (or None), and what the table has."""
    payload, merge = settings.payload_class, config.merge
    found: dict[str, tuple[Any, Any]] = {}
    if payload is None or payload != merge.payload_class:
        modes = settings.merge_mode, config.merge_mode
        known = definition_of_payload(payload) if payload else None
        fills = known.partial_update_mode if known else None
        found["merge_strategy_id"] = modes
        same = modes[0] is modes[1]
        found["payload_class"] = (fills, merge.partial_update_mode) if same else modes
    stored, mine = (config.key_generator_type or "").removesuffix("_AVRO"), settings.key_generator
    if stored in KeyGenerator.__members__:
        theirs = KeyGenerator[stored]
        same = {mine, theirs} <= {KeyGenerator.NON_PARTITION, KeyGenerator.GLOBAL_DELETE}
        found["key_generator_type"] = found["key_generator_class"] = (
            mine,
            mine if same else theirs,
        )
    return found


def key_properties_of(settings: KeySettings) -> dict[str, str]:
    """Return the properties of the key generator to store in a new table, for later writers."""
    # Exact texts, because Java compares the texts of its options with those of the table.
    kept = dict(settings.time_properties)
    bare = settings.complex_key_bare
    if bare is not None and settings.table_version == 8 and len(settings.record_key_fields) == 1:
        # Java reads this key with the same meaning, as a write option.
        kept[KeySettings.options["complex_key_bare"].key] = "true" if bare else "false"
    if settings.consistent_timestamps:
        kept[KeySettings.options["consistent_timestamps"].key] = "true"
    return kept


def merge_definition_of_settings(settings: KeySettings) -> MergeDefinition:
    """Return the merge definition of a new table: payload class, mode and markers together."""
    known = definition_of_payload(settings.payload_class) if settings.payload_class else None
    made = known or MergeDefinition(mode=settings.effective_merge_mode)
    changes: dict[str, Any] = {"ordering_fields": made.ordering_fields or settings.ordering_fields}
    if settings.merge_mode not in (None, MergeMode.CUSTOM):
        changes["mode"] = settings.merge_mode
    if settings.delete_field is not None:
        changes |= {"delete_field": settings.delete_field, "delete_marker": settings.delete_marker}
    if settings.partial_update_mode is not None:
        changes["partial_update_mode"] = PartialUpdateMode(settings.partial_update_mode)
    if settings.unavailable_marker is not None:
        changes["unavailable_marker"] = settings.unavailable_marker
    return replace(made, **changes)
