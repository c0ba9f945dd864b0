"""
The sink of a streaming query: its open table, its micro-batches and its checkpoint.

Spark repeats a micro-batch whose end its checkpoint does not have. Each commit of hoodoo has the
id of its query and batch, so hoodoo writes a repeated batch once. It also has Hudi's entry: a JSON
map from the stream's identifier to the number of its batch. So a stream of Java Hudi continues
from this entry, and this sink continues from Java's. The table stays open between the batches, for
its services in the background. It is closed when the query ends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

from py4j.protocol import Py4JJavaError

from filegroups.settings.settings import WriteSettings
from filegroups.writing.write_request import CommitResult
from hoodoo.configuration import Layers
from hoodoo.factory import compose_ports
from hoodoo.services import compaction_of_stream
from hoodoo.spark.java import java_class
from hoodoo.spark.options import layers_for
from hoodoo.spark.spark_table import SparkTable
from hoodoo.spark.write import save_dataframe, save_options, table_exists
from hoodoo.table import Table
from hoodoo.write_requests import operation_of
from timeline.errors import HoodooError, InvalidInputError, Reaction, UnsafeSetupError
from timeline.model.commit_metadata import SINK_CHECKPOINT_KEY, CommitMetadata
from timeline.properties.options import DEFAULT_LAYER
from timeline.system import LoggingEvents, SystemClock, ThreadTicker

_PATH = "org.apache.hadoop.fs.Path"
_TEXTS = "org.apache.commons.io.IOUtils"
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "hoodoo.batch_id"  # in the commit
_SINK_FILE = "hoodoo-sink.json"  # in the checkpoint folder: the address of the table
_STEP_MS = 200  # the longest delay until a stopped query ends a pause between two attempts
_WATCH_MS = 20
_TEXT_MAX = 1_500
_TRYING_HELPS = frozenset({Reaction.REDO, Reaction.REOPEN, Reaction.WAIT, Reaction.ASK})

# Spark matches the text of a failure with a recursive pattern, to learn whether a stop caused it.
# The pattern overflows the stack on a long text. It matches this one.
_STOPPED = (
    "py4j.protocol.Py4JJavaError: An error occurred while calling a micro-batch.\n"
    ": java.lang.InterruptedException"
)


class _MicroBatchError(Exception):
    """The failure of a micro-batch, as a short text for Spark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """
    The checkpoint folder of a query.

    Args:
        location: Its address; None if Spark makes a new folder.
        query: The query's id; None before its first start.
        next_batch: Number of the batch that a start runs first.
        table: The table that the query wrote to; None if the folder does not say it.
    """

    location: str | None = None
    query: str | None = None
    next_batch: int = 0
    table: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBatch:
    """The newest batch of a stream in the table: its number, and its query unless Java wrote it."""

    number: int
    query: str | None


class StreamSink:
    """
    Writes the micro-batches of one query.

    Args:
        spark: The session that starts the query.
        path: The table's path.
        options: Values by Hudi's option keys, and ``checkpointLocation``.
        partition_by: Columns of the partition path for a new table.
        query_name: The name of the query, if it has one.

    Raises:
        InvalidInputError: The checkpoint folder belongs to another table or query
            (``stream_checkpoint``).
        SettingError: An option is wrong or contradicts the table.
    """

    def __init__(
        self,
        spark: Any,
        path: str,
        options: Mapping[str, object],
        *,
        partition_by: Sequence[str] = (),
        query_name: str | None = None,
    ) -> None:
        self._path = path
        self._partition_by = tuple(partition_by)
        given = save_options(options)
        layers = layers_for(spark, given)
        settings = WriteSettings.from_properties(layers.load())
        self._identifier = settings.stream_identifier
        self._settings = settings
        self._options = {**given, **compaction_of_stream(layers.load(), settings)}
        self._table: SparkTable | None = None
        self._guard = Lock()
        self._query: Any = None
        self._has_warned = False
        # Batches that Java Hudi has committed; hoodoo finds its own by their ids.
        self._foreign_until = _checked(
            spark, path, layers, read_checkpoint(spark, options, query_name), settings
        )

    def follow(self, query: Any) -> None:
        """Close the table when the started query ends."""
        self._query = query

        def end() -> None:
            with suppress(Exception):  # the query's failure, or the session ended
                query.awaitTermination()
            self.close()
            ticker.stop()

        ticker = ThreadTicker(_WATCH_MS, end, LoggingEvents())

    def close(self) -> None:
        """End the services after their current one, and close the table."""
        with self._guard:
            table, self._table = self._table, None
        if table is not None:
            table.close()

    def save(self, batch: Any, number: int) -> CommitResult | None:
        """
        Write a micro-batch; a failure is raised as a short text, because Spark matches it.

        Returns:
            The result; None for a batch that Java Hudi has written, or that failed and is ignored.
        """
        try:
            return self._save(batch, number)
        except Exception as error:  # noqa: BLE001 - every failure ends as a text for Spark
            if self._is_stopped():
                raise _MicroBatchError(_STOPPED) from None
            text = (
                str(error) if isinstance(error, HoodooError) else f"{type(error).__name__}: {error}"
            )
            if len(text) > _TEXT_MAX:
                text = f"{text[: _TEXT_MAX // 2]} ... {text[-_TEXT_MAX // 2 :]}"
            raise _failure(batch.sparkSession, text) from None

    def _save(self, batch: Any, number: int) -> CommitResult | None:
        query = batch.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
        if not query:
            raise _no_query_id()
        if number <= self._foreign_until:
            LoggingEvents().emit("spark.batch_known", stream=self._identifier, batch=number)
            return None
        attempts_max = self._settings.stream_attempts_max
        pause_ms = self._settings.stream_retry_interval_ms
        for attempt in range(1, attempts_max + 1):
            try:
                with self._guard:
                    return self._write(batch, f"{query}-{number}", number)
            except Exception as error:
                self.close()  # the next attempt opens the table again
                if self._is_stopped():
                    raise
                helps = isinstance(error, HoodooError) and error.reaction in _TRYING_HELPS
                if helps and attempt < attempts_max:
                    self._pause(pause_ms)
                    pause_ms *= 2
                elif self._settings.stream_ignores_failed_batch:
                    why = str(error)[:_TEXT_MAX]
                    LoggingEvents().emit("spark.batch_ignored", batch=number, why=why)
                    return None
                else:
                    raise
        raise AssertionError  # the last attempt returns or raises

    def _write(self, batch: Any, batch_id: str, number: int) -> CommitResult | None:
        entry = {
            SINK_CHECKPOINT_KEY: json.dumps({self._identifier: str(number)}, separators=(",", ":"))
        }
        if self._table is None and not table_exists(
            self._path, layers_for(batch.sparkSession, self._options, warns=False)
        ):
            self._has_warned = True
            return save_dataframe(
                batch,
                self._path,
                self._options,
                mode="append",
                partition_by=self._partition_by,
                batch_id=batch_id,
                metadata=entry,
            )
        if self._table is None:
            layers = layers_for(batch.sparkSession, self._options, warns=not self._has_warned)
            self._has_warned = True
            self._table = SparkTable(batch.sparkSession, self._path, layers=layers)
        table = self._table
        operation = operation_of(table.settings)
        return table.write(batch, operation, batch_id=batch_id, metadata=entry)

    def _is_stopped(self) -> bool:
        if self._query is None:
            return False
        try:
            return not self._query.isActive
        except Exception:  # noqa: BLE001 - the session ended
            return True

    def _pause(self, pause_ms: int) -> None:
        clock = SystemClock()
        until = clock.monotonic_ms() + pause_ms
        while (left := until - clock.monotonic_ms()) > 0 and not self._is_stopped():
            clock.sleep_ms(min(left, _STEP_MS))


def _failure(spark: Any, text: str) -> Exception:
    """
    Return the failure of a micro-batch, to raise in the function that Spark calls.

    py4j sends an exception as a traceback, whose first lines are its own. It sends the exception of
    Java itself if the parameters of the thread's connection say so; a failure ends this thread.
    """
    client = spark.sparkContext._gateway._gateway_client  # noqa: SLF001
    connection = client.get_thread_connection() if hasattr(client, "thread_connection") else None
    if connection is None:
        return _MicroBatchError(text)
    connection.python_parameters = copy(connection.python_parameters)
    connection.python_parameters.propagate_java_exceptions = True
    failed: Exception = Py4JJavaError(text, java_class(spark, "java.lang.RuntimeException")(text))
    return failed


# ---- The checkpoint folder, checked before the query starts


def read_checkpoint(
    spark: Any, options: Mapping[str, object], query_name: str | None
) -> Checkpoint:
    """Read the checkpoint folder of a query by Spark's file systems. Outside: 1 get, 2 lists."""
    location = next((str(v) for k, v in options.items() if k.lower() == "checkpointlocation"), None)
    if location is None:
        base = spark.conf.get("spark.sql.streaming.checkpointLocation", None)
        location = f"{base}/{query_name}" if base and query_name else None
    if location is None:
        return Checkpoint()
    folder = _Folder(spark, location)
    identity = folder.read("metadata")
    if identity is None:
        return Checkpoint(location=location)
    planned, done = folder.newest("offsets"), folder.newest("commits")
    table = folder.read(_SINK_FILE)
    return Checkpoint(
        location=location,
        query=str(json.loads(identity)["id"]),
        next_batch=planned if planned > done else done + 1,
        table=None if table is None else str(json.loads(table)["table"]),
    )


class _Folder:
    """A folder of one of Spark's file systems."""

    def __init__(self, spark: Any, location: str) -> None:
        self._spark = spark
        self._path = java_class(spark, _PATH)(location)
        conf = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
        self._files = self._path.getFileSystem(conf)

    def _at(self, name: str) -> Any:
        return java_class(self._spark, _PATH)(self._path, name)

    def read(self, name: str) -> str | None:
        """Return the text of a file; None without the file."""
        if not self._files.exists(self._at(name)):
            return None
        stream = self._files.open(self._at(name))
        try:
            return str(java_class(self._spark, _TEXTS).toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """Write a file, or replace it."""
        stream = self._files.create(self._at(name), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def newest(self, name: str) -> int:
        """Return the greatest number among the files of a folder; -1 without one."""
        if not self._files.exists(self._at(name)):
            return -1
        names = [str(one.getPath().getName()) for one in self._files.listStatus(self._at(name))]
        return max((int(each) for each in names if each.isdigit()), default=-1)


def _checked(
    spark: Any, path: str, layers: Layers, checkpoint: Checkpoint, settings: WriteSettings
) -> int:
    """
    Check that the checkpoint folder belongs to the table and the stream, and note the table in it.

    Returns:
        The number of the newest batch that Java Hudi wrote for this stream; -1 for none.

    Raises:
        InvalidInputError: It belongs to another table or query (``stream_checkpoint``).
    """
    address = compose_ports(path, layers.load()).storage.base_uri
    if checkpoint.next_batch and checkpoint.table not in (None, address):
        raise _foreign_checkpoint(
            checkpoint,
            f"is of a stream into another table. Use a new folder; if the table has moved, delete "
            f"{_SINK_FILE} in the folder: {checkpoint.table}, not {address}",
        )
    identifier = settings.stream_identifier
    stored = None
    if table_exists(path, layers):
        with SparkTable(spark, path, layers=replace(layers, warns=False)) as table:
            stored = stored_batch(table, identifier, checkpoint.query)
            if checkpoint.table is None:
                _refuse_unknown_query(table, checkpoint)
    elif checkpoint.next_batch:
        raise _foreign_checkpoint(
            checkpoint,
            f"has {checkpoint.next_batch} batches, and there is no table. Use a new folder, or "
            f"the right path: {path}",
        )
    foreign_until = -1
    started_by_java = stored is not None and stored.query is None
    if stored is not None and (started_by_java or stored.query != checkpoint.query):
        if started_by_java and checkpoint.query and checkpoint.next_batch >= stored.number:
            foreign_until = stored.number
        elif started_by_java or settings.origin("stream_identifier") != DEFAULT_LAYER:
            key = WriteSettings.options["stream_identifier"].key
            whose = "a stream of Java Hudi" if started_by_java else f"query {stored.query}"
            raise _foreign_checkpoint(
                checkpoint,
                f"does not belong to the stream {identifier!r} of the table. "
                f"Use the folder of that stream to continue it, or another {key} for a new "
                f"stream: batch {stored.number} is of {whose}",
            )
    if checkpoint.location is not None and checkpoint.table != address:
        _Folder(spark, checkpoint.location).write(_SINK_FILE, json.dumps({"table": address}))
    return foreign_until


def stored_batch(table: Table, identifier: str, query: str | None) -> StoredBatch | None:
    """
    Return the newest batch of a stream in the table, by this query or Java Hudi; else by another.

    Outside: 1 get for each active commit until it is found.
    """
    other = None
    for metadata in table.snapshot.commits_newest_first():
        number = _number_of(metadata, identifier)
        if number is None:
            continue
        found = StoredBatch(number=number, query=_query_of(metadata))
        if found.query in (None, query):
            return found
        other = other or found
    return other


def _refuse_unknown_query(table: Table, checkpoint: Checkpoint) -> None:
    """Refuse a folder with batches if the whole timeline of the table has none of its query."""
    if not checkpoint.next_batch or any(True for _ in table.context.archived_timeline.instants()):
        return
    for metadata in table.snapshot.commits_newest_first():
        if _query_of(metadata) == checkpoint.query or (
            _query_of(metadata) is None and SINK_CHECKPOINT_KEY in metadata.extra_metadata
        ):
            return
    raise _foreign_checkpoint(
        checkpoint,
        f"has {checkpoint.next_batch} batches that the table does not have. Use a new folder, or "
        f"the path of the table that the query wrote to: query {checkpoint.query}",
    )


def _number_of(metadata: CommitMetadata, identifier: str) -> int | None:
    text = metadata.extra_metadata.get(SINK_CHECKPOINT_KEY)
    try:
        found = json.loads(text or "{}").get(identifier)
        return None if found is None else int(found)
    except (AttributeError, TypeError, ValueError):
        return None  # not in Hudi's form


def _query_of(metadata: CommitMetadata) -> str | None:
    """Return the query of a batch that hoodoo wrote."""
    query, _, number = metadata.extra_metadata.get(_BATCH_ID, "").rpartition("-")
    return query if query and number.isdigit() else None


def _foreign_checkpoint(checkpoint: Checkpoint, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"the checkpoint folder {checkpoint.location} {why}",
        kind="stream_checkpoint",
        checkpoint=checkpoint.location,
        query=checkpoint.query,
    )


def _no_query_id() -> UnsafeSetupError:
    return UnsafeSetupError(
        "the id of the query is not known, because Python threads share a Java thread. Without "
        "the id a repeated micro-batch would count twice: unset PYSPARK_PIN_THREAD",
        kind="unpinned_threads",
        key="PYSPARK_PIN_THREAD",
    )
