"""Options of the streamer: Hudi's keys, and ``hoodoo.streamer.*`` for the flags of Java's."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from pydantic import Field

from timeline.properties.options import LayeredSettings, OptionKind, option


def _old(key: str) -> tuple[str, ...]:
    """Return the spelling of Hudi before 0.14."""
    return (key.replace("hoodie.streamer.", "hoodie.deltastreamer."),)


class StreamerExecutor(Enum):
    """Where a streamer computes."""

    LOCAL = "local"
    SPARK = "spark"


class OffsetReset(Enum):
    """The begin of a streamer of Kafka without a checkpoint."""

    LATEST = "latest"
    EARLIEST = "earliest"
    GROUP = "group"


class MissingCheckpoint(Enum):
    """The begin of a streamer of a Hudi table without a checkpoint."""

    UP_TO_LATEST = "READ_UPTO_LATEST_COMMIT"
    LATEST = "READ_LATEST"


class StreamerSettings(LayeredSettings):
    """All settings of a streamer; those of the table and its writes are separate."""

    target: str | None = option(
        "hoodie.streamer.ingestion.targetBasePath",
        None,
        "Path or URI of the table that the streamer writes.",
        aliases=_old("hoodie.streamer.ingestion.targetBasePath"),
    )
    source_class: str | None = option(
        "hoodoo.streamer.source.class",
        None,
        "The source, by the name of Hudi's class: `ParquetDFSSource`, `JsonDFSSource`, "
        "`CsvDFSSource`, `AvroDFSSource`, `JsonKafkaSource`, `AvroKafkaSource`, `HoodieIncrSource`, "
        "`SqlSource` or `SqlFileBasedSource`.",
    )
    executor: StreamerExecutor = option(
        "hoodoo.streamer.executor",
        StreamerExecutor.LOCAL,
        "Where a streamer reads, transforms and writes rows: in this process, or on a Spark session. "
        "There queries are SQL of Spark, and Python transformers get DataFrames.",
    )
    identifier: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,100}$")] | None = option(
        "hoodoo.streamer.identifier",
        None,
        "Name of this streamer, if several streamers write one table. Each has a checkpoint of its "
        "own. Java's streamer continues the one without a name.",
    )
    checkpoint: str | None = option(
        "hoodoo.streamer.checkpoint",
        None,
        "Begin at this checkpoint instead of the table's. The same text counts once, as in Hudi.",
    )
    ignore_checkpoint: str | None = option(
        "hoodoo.streamer.ignore.checkpoint",
        None,
        "Begin without a checkpoint. The text names this wish; the same text counts once.",
    )
    source_limit: Annotated[int, Field(ge=1)] | None = option(
        "hoodoo.streamer.source.limit",
        None,
        "Most that one batch reads: bytes of files, or messages. Default: 256 MiB of files.",
    )
    continuous: bool = option(
        "hoodoo.streamer.continuous",
        False,
        "Run until stopped. Otherwise the streamer ends when the source has nothing new.",
    )
    interval_ms: Annotated[int, OptionKind.MS, Field(ge=0, le=86_400_000)] = option(
        "hoodoo.streamer.interval.ms",
        0,
        "Least time between the begins of two batches of a continuous streamer.",
    )
    idle_ms: Annotated[int, OptionKind.MS, Field(ge=1, le=86_400_000)] = option(
        "hoodoo.streamer.idle.ms",
        1_000,
        "Pause of a continuous streamer after a look at a source with nothing new.",
    )
    retries_max: Annotated[int, Field(ge=0, le=1_000_000)] = option(
        "hoodoo.streamer.retry.count",
        3,
        "Number of times that a continuous streamer repeats a failed batch, if a repetition may "
        "help. The pause doubles from the idle time.",
    )
    files_root: str | None = option(
        "hoodie.streamer.source.dfs.root",
        None,
        "The folder of a source of files, with its subfolders.",
        aliases=_old("hoodie.streamer.source.dfs.root"),
    )
    files_settle_ms: Annotated[int, OptionKind.MS, Field(ge=1, le=3_600_000)] = option(
        "hoodoo.streamer.source.dfs.settle.ms",
        100,
        "Age from which a file counts. The checkpoint is a time of files, so a younger file must "
        "not appear at a time that was read.",
    )
    csv_separator: Annotated[str, Field(pattern=r"^([\t -~]|\\t)$")] = option(
        "hoodie.streamer.csv.sep",
        ",",
        "The character between the fields of CSV files; `\\t` is a tab.",
        aliases=_old("hoodie.streamer.csv.sep"),
    )
    csv_header: bool | None = option(
        "hoodie.streamer.csv.header",
        None,
        "Whether CSV files begin with a line of column names. Otherwise the columns are those of the "
        "source's schema in their order, or `_c0`, `_c1` and so on. If unset, files have such a line "
        "unless the source has a schema.",
        aliases=_old("hoodie.streamer.csv.header"),
    )
    csv_quote: Annotated[str, Field(pattern=r"^[ -~]?$")] = option(
        "hoodie.streamer.csv.quote",
        '"',
        "The character around fields of CSV files; empty for none.",
        aliases=_old("hoodie.streamer.csv.quote"),
    )
    csv_escape: Annotated[str, Field(pattern=r"^[ -~]?$")] = option(
        "hoodie.streamer.csv.escape",
        "",
        "The character before a quote inside a field of CSV files; if empty, the quote is doubled.",
        aliases=_old("hoodie.streamer.csv.escape"),
    )
    csv_null: str = option(
        "hoodie.streamer.csv.nullValue",
        "",
        "The text of a null in CSV files, besides an empty field.",
        aliases=_old("hoodie.streamer.csv.nullValue"),
    )
    csv_encoding: str = option(
        "hoodie.streamer.csv.encoding",
        "UTF-8",
        "The encoding of CSV files.",
        aliases=_old("hoodie.streamer.csv.encoding"),
    )
    kafka_topic: str | None = option(
        "hoodie.streamer.source.kafka.topic",
        None,
        "The topic of a source of Kafka.",
        aliases=_old("hoodie.streamer.source.kafka.topic"),
    )
    offset_reset: OffsetReset = option(
        "auto.offset.reset",
        OffsetReset.LATEST,
        "Where a streamer of Kafka without a checkpoint begins: after the last message, at the first "
        "one, or at the offsets of the consumer group.",
    )
    kafka_messages_max: Annotated[int, Field(ge=1)] = option(
        "hoodie.streamer.kafka.source.maxEvents",
        500_000,
        "Most messages of a batch without a source limit. It ends at 256 MiB of them, too.",
        aliases=_old("hoodie.streamer.kafka.source.maxEvents"),
    )
    kafka_fails_on_loss: bool = option(
        "hoodie.streamer.source.kafka.enable.failOnDataLoss",
        False,
        "Refuse a topic that no longer has the messages after the checkpoint. Otherwise the streamer "
        "warns and reads from the first message.",
        aliases=_old("hoodie.streamer.source.kafka.enable.failOnDataLoss"),
    )
    kafka_appends_offsets: bool = option(
        "hoodie.streamer.source.kafka.append.offsets",
        False,
        "Add columns with offset, partition, time in ms and key of each message.",
        aliases=_old("hoodie.streamer.source.kafka.append.offsets"),
    )
    kafka_deserializer: str = option(
        "hoodie.streamer.source.kafka.value.deserializer.class",
        "io.confluent.kafka.serializers.KafkaAvroDeserializer",
        "The form of Avro messages: `KafkaAvroDeserializer` and `KafkaAvroSchemaDeserializer` for those "
        "of a Confluent registry (`schema.registry.url`), `ByteArrayDeserializer` for bare ones of the "
        "source's schema.",
        aliases=_old("hoodie.streamer.source.kafka.value.deserializer.class"),
    )
    source_timeout_ms: Annotated[int, OptionKind.MS, Field(ge=100, le=3_600_000)] = option(
        "hoodoo.streamer.source.timeout.ms",
        60_000,
        "Time without an answer after which a source counts as unreadable.",
    )
    hudi_path: str | None = option(
        "hoodie.streamer.source.hoodieincr.path",
        None,
        "The Hudi table that `HoodieIncrSource` reads.",
        aliases=_old("hoodie.streamer.source.hoodieincr.path"),
    )
    hudi_instants_max: Annotated[int, Field(ge=1, le=1_000_000)] = option(
        "hoodie.streamer.source.hoodieincr.num_instants",
        5,
        "Most instants of the Hudi table in a batch.",
        aliases=_old("hoodie.streamer.source.hoodieincr.num_instants"),
    )
    missing_checkpoint: MissingCheckpoint = option(
        "hoodie.streamer.source.hoodieincr.missing.checkpoint.strategy",
        MissingCheckpoint.UP_TO_LATEST,
        "Where a streamer of a Hudi table without a checkpoint begins: with all rows, or with those "
        "of the newest instant.",
        aliases=_old("hoodie.streamer.source.hoodieincr.missing.checkpoint.strategy"),
    )
    reads_latest: bool = option(
        "hoodie.streamer.source.hoodieincr.read_latest_on_missing_ckpt",
        False,
        "Hudi's older key: without a checkpoint begin with the rows of the newest instant.",
        aliases=_old("hoodie.streamer.source.hoodieincr.read_latest_on_missing_ckpt"),
    )
    query: str | None = option(
        "hoodie.streamer.source.sql.sql.query",
        None,
        "The query of `SqlSource`, in the SQL of DuckDB, or of Spark.",
        aliases=_old("hoodie.streamer.source.sql.sql.query"),
    )
    query_file: str | None = option(
        "hoodie.streamer.source.sql.file",
        None,
        "The file with the query of `SqlFileBasedSource`.",
        aliases=_old("hoodie.streamer.source.sql.file"),
    )
    query_tables: tuple[str, ...] = option(
        "hoodoo.streamer.source.sql.tables",
        (),
        "Hudi tables that the query may name, each as `name=path`.",
    )
    transformers: tuple[str, ...] = option(
        "hoodie.streamer.transformer.class",
        (),
        "Transformers, in their order: a Python function as `module:function`, or "
        "`SqlQueryBasedTransformer`, `SqlFileBasedTransformer`, `FlatteningTransformer`, "
        "`AWSDmsTransformer`. A name "
        "before a class of Hudi (`a:SqlQueryBasedTransformer`) ends the key of its query.",
        aliases=_old("hoodie.streamer.transformer.class"),
    )
    transformer_sql: str | None = option(
        "hoodie.streamer.transformer.sql",
        None,
        "The query of `SqlQueryBasedTransformer`, in the SQL of DuckDB, or of Spark; `<SRC>` is the batch.",
        aliases=_old("hoodie.streamer.transformer.sql"),
    )
    transformer_sql_file: str | None = option(
        "hoodie.streamer.transformer.sql.file",
        None,
        "The file with the query of `SqlFileBasedTransformer`.",
        aliases=_old("hoodie.streamer.transformer.sql.file"),
    )
    schema_class: str | None = option(
        "hoodoo.streamer.schemaprovider.class",
        None,
        "The origin of the schemas: `FilebasedSchemaProvider` or `SchemaRegistryProvider`. Needed only "
        "if keys of both are set.",
    )
    source_schema_file: str | None = option(
        "hoodie.streamer.schemaprovider.source.schema.file",
        None,
        "File with the Avro schema of the source. Its columns are read, and no others.",
        aliases=_old("hoodie.streamer.schemaprovider.source.schema.file"),
    )
    target_schema_file: str | None = option(
        "hoodie.streamer.schemaprovider.target.schema.file",
        None,
        "File with the Avro schema of the rows after the transformers. By default that of the source "
        "without transformers.",
        aliases=_old("hoodie.streamer.schemaprovider.target.schema.file"),
    )
    registry_url: str | None = option(
        "hoodie.streamer.schemaprovider.registry.url",
        None,
        "Address of the source's schema in a Confluent registry: "
        "`http://host:8081/subjects/orders-value/versions/latest`.",
        aliases=_old("hoodie.streamer.schemaprovider.registry.url"),
    )
    registry_target_url: str | None = option(
        "hoodie.streamer.schemaprovider.registry.targetUrl",
        None,
        "The same for the rows after the transformers.",
        aliases=_old("hoodie.streamer.schemaprovider.registry.targetUrl"),
    )
    bad_enabled: bool = option(
        "hoodie.errortable.enable",
        False,
        "Write messages and lines that cannot be read, and rows without a key, into the error table.",
    )
    bad_path: str | None = option(
        "hoodie.errortable.base.path", None, "Path or URI of the error table."
    )
    json_skips_bad: bool = option(
        "hoodie.streamer.source.json.skip.invalid.records",
        False,
        "Skip JSON messages and lines that cannot be read, with a warning.",
    )

    @property
    def leaves_out_bad(self) -> bool:
        """Whether a source leaves out records that it cannot read."""
        return self.bad_enabled or self.json_skips_bad
