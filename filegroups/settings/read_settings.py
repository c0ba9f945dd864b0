"""Options of reads; each field of ``ReadSettings`` declares its option."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import Field, model_validator

from filegroups.settings.known_keys import UNSUPPORTED_READS, refuse_unsupported
from timeline.model.instant_time import InstantTime, TimelineZone
from timeline.model.time_arguments import parse_range
from timeline.properties.options import (
    CODE_LAYER,
    LayeredSettings,
    OptionKind,
    PropertySet,
    as_property_set,
    option,
)
from timeline.properties.setting_enums import IncrementalFormat, QueryType

_Positive = Annotated[int, Field(ge=1, le=2**63 - 1)]


class LimitSettings(LayeredSettings):
    """Bounds on the timeline's files, for readers and writers."""

    timeline_instants_max: _Positive = option(
        "hoodoo.limits.timeline.instants.max",
        1_000_000,
        "Refuse a timeline with more instants.",
        caller_only=True,
    )


class ReaderLeaseSettings(LayeredSettings):
    """The lease of a reader, which readers hold and cleaning respects."""

    reader_lease_ms: Annotated[int, OptionKind.MS, Field(ge=0, le=7 * 86_400_000)] = option(
        "hoodoo.reader.lease.ms",
        900_000,
        "Time for which cleaning keeps a snapshot's files after the last use by a "
        "long read; 0 for no leases.",
        caller_only=True,
    )


class ReadSettings(LimitSettings, ReaderLeaseSettings):
    """All settings of a read; times are texts in any accepted form."""

    query_type: QueryType = option(
        "hoodie.datasource.query.type",
        QueryType.SNAPSHOT,
        "Read the whole table, only its base files, or the changes of a range.",
        aliases=("hoodie.datasource.view.type",),
    )
    incremental_format: IncrementalFormat = option(
        "hoodie.datasource.query.incremental.format",
        IncrementalFormat.LATEST_STATE,
        "Return rows as they are at the end of the range, or each change.",
    )
    as_of: str | None = option("as.of.instant", None, "Read the table as it was at this time.")
    begin_time: str | None = option(
        "hoodie.datasource.read.begin.instanttime", None, "Start of the range, not included."
    )
    end_time: str | None = option(
        "hoodie.datasource.read.end.instanttime",
        None,
        "End of the range, included; now by default.",
    )
    start_offset: str = option(
        "hoodie.datasource.streaming.startOffset",
        "earliest",
        "Start of a stream: earliest, latest (only later commits), or a time, not included.",
    )
    stream_instants_max: _Positive | None = option(
        "hoodoo.stream.max.instants",
        None,
        "Number of commits that a micro-batch of readStream reads at most (Spark 4.2 or later).",
        aliases=(
            "hoodie.streamer.source.hoodieincr.num_instants",
            "hoodie.deltastreamer.source.hoodieincr.num_instants",
        ),
    )
    stream_rows_max: _Positive | None = option(
        "hoodoo.stream.max.rows",
        None,
        "Number of changed rows that a micro-batch of readStream reads at most (Spark 4.2 or "
        "later). A commit is never split, so one larger commit is a micro-batch of its own.",
    )
    schema_of_end_time: bool = option(
        "hoodie.datasource.read.schema.use.end.instanttime",
        False,
        "Use the schema at the end of the range instead of the newest.",
    )
    spark_serves_hudi: bool = option(
        "hoodoo.spark.serves.hudi",
        False,
        "In a Spark session with Hudi's bundle, hoodoo serves the formats and tables named hudi, too; "
        "set it in the session.",
    )
    spark_driver_read_bytes_max: Annotated[int, OptionKind.BYTES, Field(ge=0, le=2**63 - 1)] = (
        option(
            "hoodoo.spark.driver.read.max.bytes",
            268_435_456,
            "Spark's driver merges the changed rows of file groups with logs during a load if "
            "they have up to this size in all, and reads CDC logs up to it; 0 leaves both to tasks.",
        )
    )
    spark_hidden_log_bytes_max: Annotated[int, OptionKind.BYTES, Field(ge=0, le=2**63 - 1)] = (
        option(
            "hoodoo.spark.read.hidden.log.max.bytes",
            33_554_432,
            "Spark's own reader reads the unchanged rows of file groups with up to this size of "
            "logs in all, and each task has the positions of the changed rows in memory. Tasks "
            "merge the other file groups whole; 0 for all.",
        )
    )

    @classmethod
    def from_properties(cls, properties: PropertySet | Mapping[str, object]) -> Self:
        """
        Read and check every option of a read.

        Raises:
            SettingError: A text is not accepted, two options contradict each other, or reads do not
                support one.
        """
        property_set = as_property_set(properties)
        refuse_unsupported(property_set, UNSUPPORTED_READS)
        values, origins = cls.read_all(property_set)
        for field in ("as_of", "begin_time", "end_time"):
            if field in origins and field not in values:
                raise cls.refusal(
                    property_set,
                    field,
                    "an empty text is not a time; omit the option, or use earliest for the "
                    "beginning of a range",
                )
        return cls(**values, origins=origins)

    @classmethod
    def of_stream(cls, properties: PropertySet | Mapping[str, object]) -> Self:
        """
        As ``from_properties``, for a stream; ``begin_time`` is its begin, or else its start offset.

        Raises:
            SettingError: As ``from_properties``; also, a time to travel to is given.
        """
        given = as_property_set(properties)
        begin, start = cls.options["begin_time"], cls.options["start_offset"]
        if given.find(begin) is None:
            offset = given.get_option(start) or str(start.default)
            given = given.with_layer(CODE_LAYER, {begin.key: offset})
        settings = cls.from_properties(given)
        if settings.as_of is not None:
            settings.refuse(
                "as_of",
                "a stream reads later commits, not one time",
                f"omit the option, or begin the stream at a time by {start.key}",
            )
        return settings

    def range_in(self, zone: TimelineZone) -> tuple[InstantTime, InstantTime | None]:
        """Return the range of an incremental query in this zone. Errors: as ``parse_range``."""
        return parse_range(self.begin_time or "earliest", self.end_time, zone)

    @property
    def has_stream_limit(self) -> bool:
        """Whether an option limits the micro-batches of a stream."""
        return self.stream_instants_max is not None or self.stream_rows_max is not None

    @property
    def is_cdc(self) -> bool:
        """Whether the read returns changes with their images instead of rows."""
        cdc = self.incremental_format is IncrementalFormat.CDC
        return cdc and self.query_type is QueryType.INCREMENTAL

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        incremental = self.query_type is QueryType.INCREMENTAL
        if incremental and self.begin_time is None:
            self.refuse(
                "begin_time",
                "an incremental query needs the start of its range",
                "give a time, or earliest",
                "setting_missing",
            )
        if incremental and self.as_of is not None:
            self.refuse(
                "as_of",
                "an incremental query reads a range, not one time",
                "use the end of the range instead",
            )
        return self
