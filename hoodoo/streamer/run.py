"""
The streamer: read a batch from a source, write it with its checkpoint in one commit, repeat.

Each batch resumes from the newest checkpoint in the table's commits, so rows and checkpoint can
never differ. The batch id names the commit before it in the stream. So a second instance of the
same streamer, or one that was paused, commits no row twice.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from filegroups.reading.scan import known_schema
from filegroups.settings.settings import WriteSettings
from filegroups.writing.write_request import CommitResult
from hoodoo.catalog import Properties, to_layers
from hoodoo.services import compaction_of_stream
from hoodoo.streamer.bad_records import BadRecord, BadRecordTable
from hoodoo.streamer.checkpoint import (
    CheckpointKeys,
    StoredCheckpoint,
    committed_by_java,
    find_checkpoint,
)
from hoodoo.streamer.engine import Engine, LocalEngine, Rows
from hoodoo.streamer.schema import schemas_of
from hoodoo.streamer.settings import StreamerExecutor, StreamerSettings
from hoodoo.streamer.sources import open_source
from hoodoo.streamer.transform import transforms_of
from hoodoo.table import Table
from hoodoo.write_requests import operation_of
from tableservices.worker import StopFlag
from timeline.errors import (
    HoodooError,
    InvalidInputError,
    Reaction,
    TableNotFoundError,
    UnsafeSetupError,
    counted,
    needs_extra,
)
from timeline.model.instant_time import InstantTime
from timeline.properties.options import PropertySet
from timeline.snapshot import Snapshot
from timeline.system import LoggingEvents, SystemClock

_STEP_MS = 200  # the longest delay until a stop ends a pause
_PAUSE_MAX_MS = 60_000
_ELSEWHERE_MAX = 1  # batches in a row; an instance that died may have committed one
_TRYING_HELPS = frozenset({Reaction.REDO, Reaction.REOPEN, Reaction.WAIT, Reaction.ASK})


_SPARK_ENGINE = "hoodoo.spark.streamer:SparkEngine"  # imported when a streamer needs it


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenBatch:
    """A batch that the streamer wrote, and the checkpoint in its commit."""

    checkpoint: str
    rows: int
    bad: int
    result: CommitResult


@dataclass(slots=True)
class StreamerReport:
    """The work of one run."""

    batches: int = 0
    rows: int = 0
    bad: int = 0
    checkpoint: str | None = None


class Streamer:
    """
    One streamer: a source, a table, and the checkpoint between them.

    Args:
        properties: A properties file, a mapping, or several of them, later ones win: the options of
            the streamer, of the table and of its writes.
        spark: A session that reads, transforms and writes the rows; None for this process, or for
            a session of its own with ``hoodoo.streamer.executor=spark``.

    Raises:
        SettingError: An option is missing or wrong, or hoodoo has no such source.
        MissingExtraError: PySpark is not installed.
        StorageCapabilityError: The session is a Spark Connect one.
    """

    def __init__(self, properties: Properties, *, spark: Any = None) -> None:
        self._layers = to_layers(properties)
        loaded = self._layers.load()
        self._engine = engine = _engine_of(loaded, spark)
        self._layers = engine.layers(self._layers)
        loaded = self._layers.load()
        self._settings = settings = StreamerSettings.from_properties(loaded)
        if settings.target is None:
            raise StreamerSettings.missing(loaded, "target", "the table's path", "the streamer")
        self._target = settings.target
        self._keys = CheckpointKeys(identifier=settings.identifier)
        self._write_settings = WriteSettings.from_properties(loaded)
        if settings.continuous:
            background = compaction_of_stream(loaded, self._write_settings)
            self._layers = self._layers.with_code(background)
        self._operation = operation_of(self._write_settings)
        if not self._operation.traits.takes_rows:
            self._write_settings.refuse(
                "operation", "a streamer writes rows", "use upsert, insert or bulk_insert"
            )
        if settings.bad_enabled and settings.bad_path is None:
            raise StreamerSettings.missing(loaded, "bad_path", "a path", "the error table")
        self._transforms = transforms_of(settings, loaded, engine)
        self._schemas = schemas_of(settings, loaded)
        self._bad_table = None
        if settings.bad_path is not None:
            self._bad_table = BadRecordTable(settings.bad_path, self._layers)
        self._source = open_source(settings, loaded, self._schemas, engine)
        self._clock = SystemClock()
        self._events = LoggingEvents()
        self._table: Table | None = None
        self._elsewhere = 0
        self._is_running = False  # after the first look at the table
        self._seen: InstantTime | None = None  # the newest commit of the stream then

    # ---- one batch

    def check(self) -> str | None:
        """
        Check table, checkpoint and source; write nothing.

        Returns:
            The checkpoint from which the next batch is read; None for the begin of the source.

        Raises:
            InvalidInputError: The source cannot be read (``unreadable_source``), or the checkpoint
                is not one of it (``streamer_checkpoint``).
            HoodooError: As ``hoodoo.open_table``, unless there is no table yet.
        """
        return self._resume()[1]

    def write_batch(self) -> tuple[WrittenBatch | None, bool]:
        """
        Write the next batch of the source.

        Returns:
            The batch, None if the source has nothing new; and whether the source has more.

        Raises:
            InvalidInputError: As ``check``, or the rows do not fit the table.
            UnsafeSetupError: Another instance of this streamer runs, because it committed two
                batches in a row first (``streamer_twice``). One may be of an instance that died. Or
                Java's streamer committed since the first batch.
            HoodooError: As ``Table.write``.
        """
        try:
            return self._write_batch()
        finally:
            self._engine.release()

    def _write_batch(self) -> tuple[WrittenBatch | None, bool]:
        before, checkpoint = self._resume()
        read = self._source.read(checkpoint, self._schemas.source or self._columns())
        if read.checkpoint is None or read.rows is None:
            return None, False
        rows = self._engine.to_rows(read.rows, self._schemas.source)
        for transform in self._transforms:
            rows = transform(rows)
        rows = self._engine.to_rows(rows, self._schemas.target)
        batch_id = self._keys.batch_id(before)
        rows = self._without_bad(
            rows, read.bad, f"{self._source.address} after {checkpoint}", batch_id
        )
        if not self._engine.columns(rows) and self._table is None:
            return None, read.has_more  # no good record yet: nothing says which columns a table has
        entries = self._keys.write(
            read.checkpoint,
            self._source.address,
            reset=self._settings.checkpoint,
            ignored=self._settings.ignore_checkpoint,
        )
        result, count, self._table = self._engine.write(
            self._table,
            self._target,
            self._layers,
            rows,
            self._operation,
            batch_id=batch_id,
            metadata=entries,
        )
        if result.already_published:
            self._committed_elsewhere(result)
            return None, True
        self._elsewhere = 0
        written = WrittenBatch(
            checkpoint=read.checkpoint, rows=count, bad=len(read.bad), result=result
        )
        return written, read.has_more

    def _committed_elsewhere(self, result: CommitResult) -> None:
        """Count a batch that an instance committed before this one, which wrote nothing then."""
        self._elsewhere += 1
        self._events.emit("streamer.batch_committed_elsewhere", rt=result.requested_time)
        if self._elsewhere > _ELSEWHERE_MAX:
            raise UnsafeSetupError(
                "another instance of this streamer commits the same batches, and nothing was "
                "written twice: run one instance, or give each its own source and "
                f"{StreamerSettings.options['identifier'].key}: commit {result.requested_time}",
                kind="streamer_twice",
                requested_time=result.requested_time,
            )

    def _without_bad(
        self, rows: Rows, bad: Sequence[BadRecord], position: str, batch_id: str
    ) -> Rows:
        """Write bad records into their table, and return the other rows."""
        if self._settings.bad_enabled:
            keys = self._write_settings.record_key_fields
            if self._table is not None:
                keys = self._table.config.record_key_fields
            rows, more = self._engine.without_keys(rows, keys, position)
            bad = [*bad, *more]
        if bad and self._bad_table is not None and self._settings.bad_enabled:
            self._bad_table.write(bad, batch_id)
        elif bad:
            key = StreamerSettings.options["json_skips_bad"].key
            warnings.warn(
                f"{counted(len(bad), 'record')} skipped by {key}: {bad[0].position}: {bad[0].reason}",
                stacklevel=2,
            )
        return rows

    def _resume(self) -> tuple[StoredCheckpoint | None, str | None]:
        """Return the newest checkpoint of the table, and the one to read from, after its checks."""
        table = self._opened()
        before = None
        if table is not None:
            snapshot = table.context.snapshot()
            before = find_checkpoint(table.context, snapshot, self._keys)
            self._refuse_java_beside(snapshot)
            self._seen = None if before is None else before.instant
        self._is_running = True
        chosen = self._chosen(before)
        self._source.check(chosen)
        return before, chosen

    def _refuse_java_beside(self, snapshot: Snapshot) -> None:
        """Refuse Java's streamer while this one runs: it may have read the same batches."""
        if not self._is_running or self._keys.identifier is not None:
            return
        found = committed_by_java(snapshot, self._keys, self._seen)
        if found is not None:
            raise UnsafeSetupError(
                "a streamer of Java Hudi commits under the same checkpoint while this one runs, so "
                "both may have written the same batch: stop one of them, and look for rows that came "
                "twice if the operation is insert; to keep both, set another source and "
                f"{StreamerSettings.options['identifier'].key} here: commit {found}",
                kind="streamer_twice",
                requested_time=found,
            )

    def _chosen(self, before: StoredCheckpoint | None) -> str | None:
        wish, ignores = self._settings.checkpoint, self._settings.ignore_checkpoint
        if ignores is not None and (before is None or before.ignored != ignores):
            return None
        if wish is not None and (before is None or before.reset != wish):
            return wish
        if before is None:
            return None
        if before.source not in (None, self._source.address):
            raise InvalidInputError(
                "the checkpoint of the table is of another source: name that source, or begin "
                "elsewhere with --checkpoint or --ignore-checkpoint; a second streamer of the "
                f"table needs its own {StreamerSettings.options['identifier'].key}: "
                f"{before.source}, not {self._source.address}",
                kind="streamer_checkpoint",
                checkpoint=before.value,
                source=before.source,
            )
        if before.value is None:
            raise InvalidInputError(
                "the newest commit of the stream has no checkpoint: begin at one by --checkpoint, or "
                f"at the begin of the source by --ignore-checkpoint: commit {before.instant}",
                kind="streamer_checkpoint",
                checkpoint=None,
                source=before.source,
            )
        return before.value

    def _opened(self) -> Table | None:
        if self._table is None:
            try:
                self._table = self._engine.open_table(self._target, self._layers)
            except TableNotFoundError:
                return None
        return self._table

    def _columns(self) -> pa.Schema | None:
        if self._table is None:
            return None
        known = known_schema(self._table.context, self._table.context.snapshot())
        return None if known is None else known.arrow

    # ---- all batches

    def run(
        self,
        *,
        stop: StopFlag | None = None,
        on_batch: Callable[[WrittenBatch], object] | None = None,
    ) -> StreamerReport:
        """
        Write batches until the source has nothing new; a continuous streamer, until stopped.

        Args:
            stop: Checked between batches and in pauses.
            on_batch: Receives each written batch.

        Raises:
            HoodooError: As ``write_batch``. A continuous streamer repeats a batch first, if a
                repetition may help.
        """
        flag = stop or StopFlag()
        report = StreamerReport()
        settings, failures = self._settings, 0
        while not flag.is_set():
            began_ms = self._clock.monotonic_ms()
            try:
                written, has_more = self.write_batch()
            except HoodooError as error:
                if not (settings.continuous and error.reaction in _TRYING_HELPS):
                    raise
                failures += 1
                if failures > settings.retries_max:
                    raise
                self._events.emit("streamer.batch_failed", failures=failures, why=str(error))
                self._close_table()  # opened again, with the state of the storage
                self._pause(min(settings.idle_ms << failures, _PAUSE_MAX_MS), flag)
                continue
            failures = 0
            if written is not None:
                report.batches += 1
                report.rows += written.rows
                report.bad += written.bad
                report.checkpoint = written.checkpoint
                if on_batch is not None:
                    on_batch(written)
            if not settings.continuous and not has_more:
                break
            if settings.continuous:
                took_ms = self._clock.monotonic_ms() - began_ms
                idle = written is None
                self._pause(max(settings.interval_ms - took_ms, settings.idle_ms * idle), flag)
        return report

    def _pause(self, pause_ms: int, stop: StopFlag) -> None:
        until = self._clock.monotonic_ms() + pause_ms
        while (left := until - self._clock.monotonic_ms()) > 0 and not stop.is_set():
            self._clock.sleep_ms(min(left, _STEP_MS))

    def _close_table(self) -> None:
        table, self._table = self._table, None
        if table is not None:
            table.close()

    def close(self) -> None:
        """Close the source and the table."""
        self._source.close()
        if self._bad_table is not None:
            self._bad_table.close()
        self._close_table()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _engine_of(properties: PropertySet, spark: Any) -> Engine:
    """Return the engine of a session, or the one that the options choose."""
    chosen = StreamerSettings.from_properties(properties).executor
    if spark is None and chosen is StreamerExecutor.LOCAL:
        return LocalEngine()
    what = (
        "a streamer on Spark needs PySpark and a Java 17; hoodoo.streamer.executor=local needs none"
    )
    with needs_extra(what, "spark", package="pyspark"):
        engine: Engine = resolve_name(_SPARK_ENGINE)(spark)
    return engine
