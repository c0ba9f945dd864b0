"""
Sources: each reads rows from a checkpoint on, and names the checkpoint after them.

A source is chosen by the name of Hudi's class, which is never imported (SEC4).
"""

from __future__ import annotations

import codecs
from difflib import get_close_matches
from functools import partial

from hoodoo.catalog import open_table
from hoodoo.input_files import CsvForm
from hoodoo.streamer.bad_records import Parse, parse_json
from hoodoo.streamer.engine import Engine, FileFormat
from hoodoo.streamer.schema import Schemas, registry_login, schema_of_id
from hoodoo.streamer.settings import StreamerSettings
from hoodoo.streamer.sources.files import FileSource
from hoodoo.streamer.sources.hudi import HudiSource
from hoodoo.streamer.sources.kafka import KafkaSource, client_options
from hoodoo.streamer.sources.kafka_avro import parse_bare, parse_numbered
from hoodoo.streamer.sources.source import Source, unreadable
from hoodoo.streamer.sources.sql import SqlSource
from hoodoo.streamer.transform import read_text
from hoodoo.table import Table
from timeline.errors import SettingError, TableNotFoundError
from timeline.properties.options import PropertySet
from timeline.storage.open_storage import storage_for
from timeline.system import SystemClock

_PACKAGE = "org.apache.hudi.utilities.sources."
_FILES = {
    "ParquetDFSSource": ".parquet",
    "JsonDFSSource": ".json",
    "CsvDFSSource": ".csv",
    "AvroDFSSource": ".avro",
}
_JSON_KAFKA, _AVRO_KAFKA = "JsonKafkaSource", "AvroKafkaSource"
_HUDI = "HoodieIncrSource"
_SQL, _SQL_FILE = "SqlSource", "SqlFileBasedSource"
_BARE = "ByteArrayDeserializer"
_NUMBERED = ("KafkaAvroDeserializer", "KafkaAvroSchemaDeserializer")
NAMES = (*_FILES, _JSON_KAFKA, _AVRO_KAFKA, _HUDI, _SQL, _SQL_FILE)


def open_source(
    settings: StreamerSettings, properties: PropertySet, schemas: Schemas, engine: Engine
) -> Source:
    """
    Return the source that the settings name, read by an engine; no row is read yet.

    Raises:
        SettingError: No source is named, hoodoo has no such source, or an option of it is missing.
        InvalidInputError: A Hudi table to read does not exist (``unreadable_source``).
    """
    if settings.source_class is None:
        raise StreamerSettings.missing(
            properties, "source_class", f"one of {', '.join(NAMES)}", "the streamer"
        )
    name = settings.source_class.removeprefix(_PACKAGE)
    clock = SystemClock()

    def needed(field: str, wanted: str) -> str:
        value: str | None = getattr(settings, field)
        if value is None:
            raise StreamerSettings.missing(properties, field, wanted, name)
        return value

    if name in _FILES:
        return FileSource(
            storage_for(needed("files_root", "a folder, /in"), options=properties),
            clock,
            engine,
            FileFormat(
                ending=_FILES[name],
                leaves_out_bad=settings.leaves_out_bad and _FILES[name] == ".json",
                csv_form=_csv_form(settings, properties, schemas),
            ),
            bytes_max=settings.source_limit,
            settle_ms=settings.files_settle_ms,
        )
    if name in (_JSON_KAFKA, _AVRO_KAFKA):
        topic = needed("kafka_topic", "a topic, orders")
        parse = parse_json(f"kafka:{topic}")
        if name == _AVRO_KAFKA:
            parse = _parse_avro(topic, settings, properties, schemas)
        return KafkaSource(settings, client_options(properties), clock, parse)
    if name == _HUDI:
        path = needed("hudi_path", "the path of a Hudi table")
        return HudiSource(settings, _table(path, properties), engine)
    if name in (_SQL, _SQL_FILE):
        field = "query" if name == _SQL else "query_file"
        query = needed(field, "a query, SELECT ...")
        if name == _SQL_FILE:
            query = read_text(query, StreamerSettings.options[field].key)
        if settings.continuous:
            raise StreamerSettings.refusal(
                properties, "continuous", f"{name} has no position; run it once", "leave it out"
            )
        return SqlSource(query, _query_tables(settings, properties), clock, engine)
    near = get_close_matches(name, NAMES, n=1, cutoff=0.85)
    hint = f"did you mean {near[0]}" if near else f"use one of {', '.join(NAMES)}"
    raise StreamerSettings.refusal(properties, "source_class", f"hoodoo has no such source; {hint}")


def _csv_form(settings: StreamerSettings, properties: PropertySet, schemas: Schemas) -> CsvForm:
    try:
        codecs.lookup(settings.csv_encoding)
    except LookupError:
        raise StreamerSettings.refusal(
            properties, "csv_encoding", "this encoding is unknown; use UTF-8, ISO-8859-1, ..."
        ) from None
    names = () if schemas.source is None else tuple(schemas.source.names)
    return CsvForm(
        separator="\t" if settings.csv_separator == r"\t" else settings.csv_separator,
        quote=settings.csv_quote,
        escape=settings.csv_escape,
        null_text=settings.csv_null,
        encoding=settings.csv_encoding,
        has_header=not names if settings.csv_header is None else settings.csv_header,
        columns=names,
    )


def _parse_avro(
    topic: str, settings: StreamerSettings, properties: PropertySet, schemas: Schemas
) -> Parse:
    """Return the reader of Avro messages that the option of Java's deserializer names."""
    name = settings.kafka_deserializer.rpartition(".")[2]
    if name == _BARE:
        if schemas.source_json is None:
            raise StreamerSettings.missing(
                properties, "source_schema_file", "the schema of the messages", name
            )
        return parse_bare(topic, schemas.source_json)
    if name not in _NUMBERED:
        raise StreamerSettings.refusal(
            properties,
            "kafka_deserializer",
            f"hoodoo has no such deserializer; use one of {', '.join((*_NUMBERED, _BARE))}",
        )
    registry = properties.get("schema.registry.url", "").partition(",")[0]
    if not registry:
        raise SettingError(
            "set schema.registry.url to the schema registry, http://host:8081: "
            f"{_AVRO_KAFKA} needs it",
            kind="setting_missing",
            key="schema.registry.url",
            value="",
            layer="default",
            suggestion="http://host:8081",
        )
    return parse_numbered(topic, partial(schema_of_id, registry, login=registry_login(properties)))


def _query_tables(settings: StreamerSettings, properties: PropertySet) -> dict[str, Table]:
    found: dict[str, Table] = {}
    for entry in settings.query_tables:
        name, sign, path = entry.partition("=")
        if not (sign and name.isidentifier() and path):
            raise StreamerSettings.refusal(
                properties, "query_tables", "each entry is name=path", value=entry
            )
        found[name] = _table(path, properties)
    return found


def _table(path: str, properties: PropertySet) -> Table:
    """Open a table to read, with the options of stores only."""
    stores = {
        key: text for key, text in properties.items() if key.startswith(("hoodoo.storage.", "fs."))
    }
    try:
        return open_table(path, properties=stores)
    except TableNotFoundError:
        raise unreadable(path, "because the path has no Hudi table; correct it") from None
