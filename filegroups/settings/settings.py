"""
Settings of writes and reads: the typed, checked values of the options.

They are built once from properties and handed down as frozen values; no lower layer reads a
property. Each value knows its layer. Contradictions are refused here, before anything changes.
Defaults are Hudi's, except: conflict retries 4 (Hudi 0), early conflict detection on, metadata
table off, timeline zone UTC, compression snappy (gzip), log blocks parquet (avro).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, NoReturn, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from filegroups.files.log_files import LogFormat
from filegroups.keys.bucketing import BucketEngine
from filegroups.keys.keys import KeyGenerator, infer_key_generator
from filegroups.keys.timestamp_keys import TimestampKeys
from filegroups.settings.key_settings import contradictions_of_keys, resolve_key_options
from filegroups.settings.known_keys import is_known_key
from filegroups.settings.non_blocking import contradiction_of_non_blocking
from filegroups.settings.option_table import READ_OPTIONS, WRITE_OPTIONS
from filegroups.settings.rate_limit_options import contradiction_of_rate_limit
from filegroups.settings.retry_options import contradictions_of_retries, fill_from_preset
from filegroups.settings.unsupported import UNSUPPORTED_READS, refuse_unsupported
from timeline.errors import SettingError
from timeline.model.commit_metadata import (
    CdcMode,
    ConcurrencyMode,
    MergeMode,
    TableType,
    WriteOperation,
)
from timeline.model.instant_time import InstantTime, TimelineZone
from timeline.model.time_arguments import parse_range
from timeline.properties.options import (
    CODE_LAYER,
    DEFAULT_LAYER,
    HIDDEN,
    Option,
    OptionValue,
    PropertySet,
    as_property_set,
    read_option,
    redact,
)
from timeline.properties.setting_enums import (
    BloomType,
    ClusteringUpdates,
    CommitLockMode,
    Durability,
    EarlyDetection,
    FailedWritesPolicy,
    ForeignWriters,
    IncrementalFormat,
    IndexType,
    InsertDuplicates,
    OverwriteMode,
    QueryType,
)
from timeline.rules.bucket_ranges import BucketRanges
from timeline.rules.conflicts import SIMPLE
from timeline.rules.isolation import Isolation
from timeline.rules.retry import RetryPolicy, RetryPreset

__all__ = [
    "BloomType",
    "CommitLockMode",
    "Durability",
    "FailedWritesPolicy",
    "ForeignWriters",
    "IncrementalFormat",
    "IndexType",
    "InsertDuplicates",
    "KeyGenerator",
    "OverwriteMode",
    "QueryType",
    "ReadSettings",
    "WriteSettings",
]

_Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
_Positive = Annotated[int, Field(ge=1, le=2**63 - 1)]


def _own_buckets(told: object) -> object:
    return BucketRanges.parse(told) if isinstance(told, str) else told


class _Settings(BaseModel):
    """Base of both settings: frozen, without extra fields, with errors as ``SettingError``."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    options: ClassVar[Mapping[str, Option]] = MappingProxyType({})

    origins: Mapping[str, str] = Field(default_factory=dict, repr=False)

    if not TYPE_CHECKING:

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise _as_setting_error(error, self.options, values.get("origins", {})) from error

    def origin(self, field: str) -> str:
        """Return the layer that set a field; ``default`` if none did."""
        return self.origins.get(field, DEFAULT_LAYER)

    def _refuse(self, field: str, message: str, *, suggestion: str, kind: str) -> NoReturn:
        value = getattr(self, field)
        key = self.options[field].key
        shown = _shown(key, value)
        layer = self.origin(field)
        raise SettingError(
            f"{message}: {key}={shown} (from {layer}); {suggestion}",
            kind=kind,
            key=key,
            value=shown,
            layer=layer,
            suggestion=suggestion,
        )


class WriteSettings(_Settings):
    """All settings of a write; ``filegroups.settings.option_table`` describes each one."""

    options: ClassVar[Mapping[str, Option]] = WRITE_OPTIONS

    operation: WriteOperation = WriteOperation.UPSERT
    partitions_to_delete: tuple[str, ...] = ()
    overwritten_partitions: tuple[str, ...] = ()
    overwrite_mode: OverwriteMode | None = None
    combine_before_insert: bool = False
    combine_before_upsert: bool = True
    insert_duplicates: InsertDuplicates = InsertDuplicates.NONE
    allow_duplicates_on_inserts: bool = True

    table_name: str | None = None
    database: str | None = None
    table_type: TableType = TableType.COPY_ON_WRITE
    table_version: int = 9
    timeline_zone: str = "UTC"
    record_key_fields: tuple[str, ...] = ()
    partition_fields: tuple[str, ...] = ()
    ordering_fields: tuple[str, ...] = ()
    hive_style_partitioning: bool = False
    url_encode_partitioning: bool = False
    key_generator: KeyGenerator | None = None  # None: chosen from the fields
    partition_types: tuple[str | None, ...] = ()  # of a CUSTOM key generator
    timestamp_keys: TimestampKeys | None = None
    time_properties: Mapping[str, str] = Field(default_factory=dict)
    complex_key_bare: bool | None = None
    populate_meta_fields: bool = True
    partition_metafile_base_format: bool = False
    drop_partition_columns: bool = False
    change_logs: bool = False
    change_log_mode: CdcMode = CdcMode.DATA_BEFORE_AFTER
    merge_mode: MergeMode | None = None  # None: depends on whether there are ordering fields
    payload_class: str | None = None
    merger_classes: tuple[str, ...] = ()
    delete_field: str | None = None
    delete_marker: str | None = None
    partial_update_mode: str | None = None
    partial_update_schema: str | None = None
    unavailable_marker: str | None = None
    metadata_enable: bool | None = None  # None: not given; False: switch an existing one off

    schema_reconcile: bool = False
    schema_validate: bool = False
    set_null_for_missing_columns: bool = False
    drop_missing_columns: bool = False

    parquet_file_bytes_max: _Positive = 125_829_120
    small_file_bytes_max: _Count = 104_857_600
    small_files_max: _Positive = 1
    record_size_bytes: _Positive = 1024
    insert_split_rows: _Positive = 500_000
    insert_auto_split: bool = True
    parquet_row_group_bytes: _Positive = 125_829_120
    parquet_page_bytes: _Positive = 1_048_576
    parquet_compression: str = "snappy"
    parquet_dictionary: bool = True
    log_format: LogFormat | None = None  # none: as the ordering fields allow
    log_file_bytes_max: _Positive = 1_073_741_824
    log_block_bytes_max: Annotated[int, Field(ge=1, le=1_073_741_824)] = 268_435_456
    shuffle_tasks: _Count = 0

    index_type: IndexType = IndexType.SIMPLE
    bucket_engine: BucketEngine = BucketEngine.SIMPLE
    bucket_count: Annotated[int, Field(ge=1, le=99_999_999)] = 256
    bucket_hash_fields: tuple[str, ...] = ()  # none: all record key fields
    own_buckets: Annotated[BucketRanges | None, BeforeValidator(_own_buckets)] = None
    simple_index_moves: bool = True
    bloom_index_moves: bool = True
    bloom_enabled: bool = True
    bloom_type: BloomType = BloomType.DYNAMIC_V0
    bloom_keys: _Positive = 60_000
    bloom_false_positive_rate: Annotated[float, Field(gt=0, lt=1)] = 0.000000001
    bloom_dynamic_keys_max: _Positive = 100_000

    concurrency_mode: ConcurrencyMode = ConcurrencyMode.SINGLE_WRITER
    failed_writes_policy: FailedWritesPolicy = FailedWritesPolicy.EAGER  # many writers: LAZY
    early_conflict_detection: bool = True
    early_detection: EarlyDetection = EarlyDetection.PUBLISHED
    heartbeat_interval_ms: Annotated[int, Field(ge=1000, le=86_400_000)] = 60_000
    heartbeat_misses: Annotated[int, Field(ge=1, le=1000)] = 2
    conflict_retries: Annotated[int, Field(ge=0, le=1000)] = 4
    commit_attempts_max: Annotated[int, Field(ge=1, le=100_000)] = 16
    commit_retry_base_ms: _Count = 50
    commit_retry_cap_ms: _Count = 10_000
    commit_retry_total_ms: _Count = 1_800_000
    retry_policy: RetryPolicy = RetryPolicy.EXPONENTIAL_JITTER
    retry_preset: RetryPreset | None = None
    retry_wasted_bytes_max: _Count = 0
    retry_queue_after: Annotated[int, Field(ge=0, le=1000)] = 0
    retry_queue_short_ms: _Count = 500
    pace_per_minute: Annotated[float, Field(ge=0, le=60_000, allow_inf_nan=False)] = 0
    pace_burst: Annotated[int, Field(ge=1, le=1000)] = 1
    pace_wait_ms_max: _Count = 600_000
    group_writes_max: Annotated[int, Field(ge=1, le=1000)] = 1
    group_linger_ms: Annotated[int, Field(ge=0, le=60_000)] = 0
    group_service: str | None = None
    group_service_wait_ms: Annotated[int, Field(ge=10, le=3_600_000)] = 60_000
    publish_lock: CommitLockMode = CommitLockMode.LOCK
    foreign_writers: ForeignWriters = ForeignWriters.NONE
    clustering_updates: ClusteringUpdates | None = (
        None  # None: depends on whether foreign writers are expected
    )
    conflict_strategy: str = SIMPLE.class_names[0]
    cancel_met_clustering: bool = False
    isolation: Isolation = Isolation.SNAPSHOT

    batch_id: str | None = None
    application_id: str = "Unknown"
    commit_metadata_prefix: str = "_"
    extra_metadata: Mapping[str, str] = Field(default_factory=dict)
    durability: Durability = Durability.STRICT
    clock_ahead_ms_max: _Positive = 600_000
    timeline_instants_max: _Positive = 1_000_000
    metadata_bytes_max: _Positive = 268_435_456
    plan_files_max: _Positive = 10_000_000

    @classmethod
    def from_properties(cls, properties: PropertySet | Mapping[str, object]) -> Self:
        """
        Read and check every option of a write.

        Raises:
            SettingError: A text is not accepted, two options contradict each other, or this release
                does not support one (``kind`` ``unsupported_setting``).
        """
        properties = as_property_set(properties)
        refuse_unsupported(properties)
        values, origins = _read_all(properties, WRITE_OPTIONS)
        resolve_key_options(properties, values)
        if values.get("insert_drop_duplicates") and "insert_duplicates" not in origins:
            values["insert_duplicates"] = InsertDuplicates.DROP.value
        values.pop("insert_drop_duplicates", None)
        fill_from_preset(values, origins)
        prefix = properties.get_option(WRITE_OPTIONS["commit_metadata_prefix"])
        values["extra_metadata"] = _extra_metadata(properties, "_" if prefix is None else prefix)
        return cls(**values, origins=origins)

    @property
    def multi_writer(self) -> bool:
        """Whether other writers are expected at the same time."""
        return self.concurrency_mode is not ConcurrencyMode.SINGLE_WRITER

    @property
    def heartbeat_expiry_ms(self) -> int:
        """Time in ms without an update after which a heartbeat is expired (HB-2)."""
        return self.heartbeat_interval_ms * self.heartbeat_misses

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

    @model_validator(mode="before")
    @classmethod
    def _force_lazy(cls, values: Any) -> Any:
        """With many writers the cleaner rolls failed writes back, never the next writer."""
        if isinstance(values, dict) and values.get("failed_writes_policy") is None:
            single = ConcurrencyMode.SINGLE_WRITER
            mode = values.get("concurrency_mode", single)
            many = mode not in (single, single.value)
            policy = FailedWritesPolicy.LAZY if many else FailedWritesPolicy.EAGER
            return {**values, "failed_writes_policy": policy}
        return values

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        if self.table_version not in (8, 9):
            self._refuse(
                "table_version",
                "this release writes table versions 8 and 9 only",
                suggestion="use 9, or 8 for readers of hudi 1.0",
                kind="unsupported_setting",
            )
        if self.multi_writer and self.failed_writes_policy is FailedWritesPolicy.EAGER:
            self._refuse(
                "failed_writes_policy",
                "with many writers the next writer cannot tell a failed write from a live one",
                suggestion="leave it out or use LAZY",
                kind="setting_contradiction",
            )
        if (
            self.foreign_writers is ForeignWriters.EXPECTED
            and self.publish_lock is not CommitLockMode.LOCK
        ):
            self._refuse(
                "publish_lock",
                "writers of other engines are excluded by the lock only, each time (FOR-1)",
                suggestion="use lock",
                kind="setting_contradiction",
            )
        if (
            self.foreign_writers is ForeignWriters.EXPECTED
            and self.clustering_updates is ClusteringUpdates.ALLOW
        ):
            self._refuse(
                "clustering_updates",
                "another engine's clustering does not look again at its input when it completes, "
                "and would lose the write",
                suggestion="leave it out",
                kind="setting_contradiction",
            )
        judges = (
            contradictions_of_retries,
            contradiction_of_rate_limit,
            contradiction_of_non_blocking,
        )
        for judge in judges:
            found = judge(self)
            if found is not None:
                field, message, suggestion = found
                self._refuse(field, message, suggestion=suggestion, kind="setting_contradiction")
        self._refuse_fields()
        return self

    def _refuse_fields(self) -> None:
        for field in ("record_key_fields", "partition_fields", "ordering_fields"):
            names: tuple[str, ...] = getattr(self, field)
            if len(set(names)) != len(names):
                self._refuse(
                    field,
                    "a field is named twice",
                    suggestion="name each field once",
                    kind="setting_value",
                )
        found = contradictions_of_keys(self)
        if found is not None:
            field, message, suggestion, kind = found
            self._refuse(field, message, suggestion=suggestion, kind=kind)


class ReadSettings(_Settings):
    """All settings of a read; times are texts in any accepted form."""

    options: ClassVar[Mapping[str, Option]] = READ_OPTIONS

    query_type: QueryType = QueryType.SNAPSHOT
    incremental_format: IncrementalFormat = IncrementalFormat.LATEST_STATE
    as_of: str | None = None
    begin_time: str | None = None
    end_time: str | None = None
    start_offset: str = "earliest"
    schema_of_end_time: bool = False
    reader_lease_ms: Annotated[int, Field(ge=0, le=7 * 86_400_000)] = 900_000
    timeline_instants_max: _Positive = 1_000_000
    metadata_bytes_max: _Positive = 268_435_456

    @classmethod
    def from_properties(cls, properties: PropertySet | Mapping[str, object]) -> Self:
        """
        Read and check every option of a read.

        Raises:
            SettingError: A text is not accepted, two options contradict each other, or reads do not
                support one.
        """
        said = as_property_set(properties)
        refuse_unsupported(said, UNSUPPORTED_READS)
        values, origins = _read_all(said, READ_OPTIONS)
        for field in ("as_of", "begin_time", "end_time"):
            if field in origins and field not in values:
                raise SettingError(
                    "an empty text is no moment; leave the option out, or say earliest for the "
                    f"beginning of a range: {READ_OPTIONS[field].key}",
                    kind="setting_value",
                    key=READ_OPTIONS[field].key,
                    layer=origins[field],
                )
        return cls(**values, origins=origins)

    def range_in(self, zone: TimelineZone) -> tuple[InstantTime, InstantTime | None]:
        """Return the range of an incremental query in this zone. Errors: as ``parse_range``."""
        return parse_range(self.begin_time or "earliest", self.end_time, zone)

    @property
    def every_change(self) -> bool:
        """Whether the read returns changes with their images instead of rows."""
        cdc = self.incremental_format is IncrementalFormat.CDC
        return cdc and self.query_type is QueryType.INCREMENTAL

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        incremental = self.query_type is QueryType.INCREMENTAL
        if incremental and self.begin_time is None:
            self._refuse(
                "begin_time",
                "an incremental query needs the start of its range",
                suggestion="give a time, or earliest",
                kind="setting_missing",
            )
        if incremental and self.as_of is not None:
            self._refuse(
                "as_of",
                "an incremental query reads a range, not one time",
                suggestion="use the end of the range instead",
                kind="setting_contradiction",
            )
        return self


def _read_all(
    properties: PropertySet, options: Mapping[str, Option]
) -> tuple[dict[str, Any], dict[str, str]]:
    values: dict[str, OptionValue] = {}
    origins: dict[str, str] = {}
    for field, option in options.items():
        found = properties.find(option)
        if found is not None:
            origins[field] = found[2]
        value = read_option(properties, option)
        # an empty text or list leaves an optional field unset
        if value is not None and (value != "" or option.default is not None):
            values[field] = value
    return values, origins


def _extra_metadata(properties: PropertySet, prefix: str) -> dict[str, str]:
    if not prefix:
        return {}
    return {
        key: value
        for key, value in properties.with_prefix(prefix).items()
        # SEC5: a secret never reaches a commit, whatever the prefix
        if not is_known_key(key) and redact(key, value) == value
    }


def _as_setting_error(
    error: ValidationError, options: Mapping[str, Option], origins: Mapping[str, str]
) -> SettingError:
    first = error.errors()[0]
    own = first.get("ctx", {}).get("error")
    if isinstance(own, SettingError):
        return own
    field = str(first["loc"][0]) if first["loc"] else ""
    option = options.get(field)
    key = field if option is None else option.key
    shown = _shown(key, first["input"])
    layer = origins.get(field, CODE_LAYER)
    accepted = str(first["msg"]).lower()
    return SettingError(
        f"this property is not accepted, {accepted}: {key}={shown} (from {layer})",
        kind="setting_value",
        key=key,
        value=shown,
        layer=layer,
        suggestion=accepted,
    )


_UNSET: Final = "(not set)"


def _shown(key: str, value: object) -> str:
    if value is None:
        return _UNSET
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, tuple | list):
        return redact(key, ",".join(str(part) for part in value))
    if isinstance(value, str | int | float):
        return redact(key, str(value).lower() if isinstance(value, bool) else str(value))
    return HIDDEN
