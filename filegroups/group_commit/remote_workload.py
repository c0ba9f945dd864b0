"""
A workload whose rows are in another process: the committer's side of a channel (GRP-4).

The committer begins, assigns file groups, validates and commits as always. It requests key lookups
and data files from the writer, which has the rows, the processors and its own connection to the
storage. If the rows are few or coalesced, the committer writes them (GRP-8). It checks each answer:
the writer may name only files of this instant that its own tasks make, and send only rows that it
offered.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import pyarrow as pa

from filegroups.files.rewrite import FileGroupTask
from filegroups.group_commit.messages import (
    Assigned,
    AssignRows,
    CandidateFile,
    Channel,
    CountRows,
    Failed,
    GivenRows,
    GiveRows,
    Message,
    Offer,
    PeerLostError,
    Precompute,
    Precomputed,
    RewriteTasks,
    Rewritten,
    RowsCounted,
    Tagged,
    TagKeys,
    decoded_rows,
)
from filegroups.index import IndexedFile
from filegroups.keys.bucketing import BucketAssigner, ConsistentHashAssigner, SimpleBucketAssigner
from filegroups.keys.insert_buckets import InsertBucket
from filegroups.schema.schema import TableSchema
from filegroups.writing.workload import LocalWorkload, WorkloadProfile
from filegroups.writing.write import PreparedWrite
from filegroups.writing.write_request import RowRules, WriteRequest
from timeline.context import TableContext
from timeline.errors import (
    InvalidInputError,
    InvariantError,
    StorageUnavailableError,
    UnsupportedTableError,
)
from timeline.model.commit_metadata import WriteStat
from timeline.model.file_names import (
    check_partition_path,
    parse_base_file_name,
    parse_log_file_name,
)
from timeline.model.instant_time import InstantTime

__all__ = ["RemoteWorkload", "remote_work"]

_SLACK_BYTES = 4096  # for masks and offsets of a few rows
_LAST_MOMENT_MS = 100  # for an answer that has arrived already, after other waits

_Expected = TypeVar("_Expected", bound=Message)


class RemoteWorkload:
    """
    Implements ``filegroups.writing.workload`` by requests to the writer that has the rows.

    Args:
        channel: The channel to the writer, used by one caller at a time.
        offer: The writer's offer.
        answer_ms: Limit of one answer, in ms; a writer that is silent for longer is lost.

    Raises:
        InvalidInputError: The offer has no valid schema or partition paths.
    """

    def __init__(self, channel: Channel, offer: Offer, *, answer_ms: int) -> None:
        self._channel = channel
        self._answer_ms = answer_ms
        self._schema = _schema_of(offer)
        self._paths = tuple(sorted(offer.partition_paths))
        self.rows_bytes = offer.rows_bytes
        self._offered = offer.rows
        for path in self._paths:
            check_partition_path(path)
        self._attempted: frozenset[str] = frozenset()

    @property
    def schema(self) -> pa.Schema:
        """See ``Workload.schema``."""
        return self._schema

    @property
    def brings_rows(self) -> bool:
        """Whether the offer contains the rows."""
        return self._offered is not None

    def is_empty(self) -> bool:
        """See ``Workload.is_empty``. Without rows the offer has the table's columns."""
        return not self._paths

    def prepare(self, rules: RowRules, schema: TableSchema) -> None:  # noqa: ARG002
        """Raise: the writer prepares the rows before it offers the write."""
        raise InvariantError("the rows of another process are prepared there")

    def partition_paths(self) -> tuple[str, ...]:
        """See ``Workload.partition_paths``."""
        return self._paths

    def tag(self, candidates: Mapping[str, Sequence[IndexedFile]]) -> WorkloadProfile:
        """See ``Workload.tag``."""
        self._attempted = frozenset()
        if any(one.merged is not None for files in candidates.values() for one in files):
            raise UnsupportedTableError(
                "keys are looked for in log files of this table, which a committer does not ask "
                "another process to do",
                kind="not_shared",
            )
        told = {
            path: tuple(
                CandidateFile(file_id=one.file_id, path=one.path, virtual_keys=one.virtual_keys)
                for one in files
            )
            for path, files in candidates.items()
        }
        found = self._ask(TagKeys(candidates=told), Tagged)
        asked = {(path, one.file_id) for path, files in told.items() for one in files}
        groups = {(group.partition_path, group.file_id) for group, _ in found.updates}
        if not (groups <= asked and set(found.inserts) <= set(self._paths)):
            raise self._refused("keys in files that it was not asked about")
        return WorkloadProfile(inserts=dict(found.inserts), updates=dict(found.updates))

    def spread(self, shares: BucketAssigner) -> Mapping[tuple[str, int], int]:
        """See ``Workload.spread``."""
        if isinstance(shares, SimpleBucketAssigner):
            question = CountRows(remainder=shares)
        elif isinstance(shares, ConsistentHashAssigner):
            question = CountRows(ring=shares)
        else:
            raise InvariantError(f"unknown shares: {type(shares).__name__}")
        found = self._ask(question, RowsCounted)
        if not {path for path, _, _ in found.rows} <= set(self._paths):
            raise self._refused("rows in partitions that it has none for")
        return {(path, number): rows for path, number, rows in found.rows}

    def assign(self, buckets: Sequence[InsertBucket], file_ids: Mapping[int, str]) -> None:
        """See ``Workload.assign``."""
        told = tuple((bucket, file_ids[bucket.number]) for bucket in buckets)
        self._ask(AssignRows(buckets=told), Assigned)

    def make_ahead(self, tasks: Sequence[FileGroupTask]) -> None:
        """See ``Workload.make_ahead``."""
        if tasks:
            self._ask(Precompute(tasks=tuple(one.to_json() for one in tasks)), Precomputed)

    def rewrite(self, tasks: Sequence[FileGroupTask]) -> list[tuple[WriteStat, ...]]:
        """
        See ``Workload.rewrite``.

        Raises:
            PeerLostError: The writer is lost; it may have written files, or may still write.
        """
        if not tasks:
            return []
        time = tasks[0].requested_time
        question = RewriteTasks(requested_time=time, tasks=tuple(one.to_json() for one in tasks))
        written = self._ask(question, Rewritten, own=tasks)
        if len(written.stats) != len(tasks):
            raise self._refused(f"{len(written.stats)} answers to {len(tasks)} tasks")
        for task, stats in zip(tasks, written.stats, strict=True):
            self._check((path for stat in stats for path in stat.paths), (task,))
            if any(_strays(task, stat) for stat in stats):
                raise self._refused(f"not of file group {task.file_id}")
        self._note(written.attempted, tasks)
        return list(written.stats)

    def ask_for_rows(self, requested_time: InstantTime, name: str) -> None:
        """
        Request the rows, or note that offered rows are used. ``given_rows`` reads the answer.

        Args:
            requested_time: Requested time of the instant, where the writer looks up its outcome.
            name: Name of this write in the commit's results (``parts_of``).

        Raises:
            PeerLostError: The writer is lost.
        """
        self._tell(GiveRows(requested_time=requested_time, name=name))

    def given_rows(
        self, context: TableContext, work: PreparedWrite, *, waited_ms: int = 0
    ) -> LocalWorkload:
        """
        Return the rows, to be written here, after the writer confirmed the instant.

        Args:
            context: The committer's table.
            work: The write with this workload.
            waited_ms: Time since the request that was spent on other writers, in ms.

        Raises:
            PeerLostError: The writer is lost, or these are not the rows that it offered.
        """
        left_ms = max(self._answer_ms - waited_ms, _LAST_MOMENT_MS)
        told = self._hear(GivenRows, wait_ms=left_ms).rows
        text = self._offered if told is None else told
        if text is None:
            raise self._refused("no rows")
        try:
            # Twice, because a slice of rows is smaller before it is sent than its buffers after.
            bytes_max = 2 * (self.rows_bytes or 0) + _SLACK_BYTES
            rows = decoded_rows(text, work.schema, self._paths, bytes_max=bytes_max)
        except ValueError as error:
            raise self._refused(str(error)) from None
        return LocalWorkload.of_prepared(
            context.world, rows, work.plan.rules, incoming=self._schema
        )

    def attempted(self) -> frozenset[str]:
        """See ``Workload.attempted``; all paths that the writer reported."""
        return self._attempted

    def release(self) -> None:
        """Do nothing: the writer has the rows."""

    def _ask(
        self,
        question: Message,
        expected: type[_Expected],
        *,
        own: Sequence[FileGroupTask] = (),
    ) -> _Expected:
        self._tell(question)
        return self._hear(expected, own=own)

    def _tell(self, question: Message) -> None:
        try:
            self._channel.send(question)
        except PeerLostError:
            self._channel.close()
            raise

    def _hear(
        self,
        expected: type[_Expected],
        *,
        own: Sequence[FileGroupTask] = (),
        wait_ms: int | None = None,
    ) -> _Expected:
        try:
            answer = self._channel.receive(self._answer_ms if wait_ms is None else wait_ms)
        except PeerLostError:
            self._channel.close()
            raise
        if isinstance(answer, Failed):
            self._note(answer.attempted, own)
            raise StorageUnavailableError(
                f"the writer of another process could not do its part: {answer.why}",
                kind="member_failed",
            )
        if not isinstance(answer, expected):
            raise self._refused(f"{answer.kind}, where {expected.__name__} was asked for")
        return answer

    def _note(self, attempted: Iterable[str], tasks: Sequence[FileGroupTask]) -> None:
        """Note paths to delete unless the commit names them; only the write's own are allowed."""
        told = frozenset(attempted)
        self._check(told, tasks)
        self._attempted |= told

    def _check(self, paths: Iterable[str], tasks: Sequence[FileGroupTask]) -> None:
        own = {(task.partition_path, task.file_id, task.requested_time) for task in tasks}
        for path in paths:
            if _maker_of(path) not in own:
                raise self._refused(f"a file that no task of this write makes: {path[:300]!a}")

    def _refused(self, why: str) -> PeerLostError:
        self._channel.close()
        return PeerLostError(why)


def _maker_of(path: str) -> tuple[str, str, InstantTime] | None:
    """Return partition path, file id and instant of a data file; None for any other file."""
    folder, _, name = path.rpartition("/")
    base, log = parse_base_file_name(name), parse_log_file_name(name)
    if base is not None:
        return folder, base.file_id, base.requested_time
    return None if log is None else (folder, log.file_id, log.instant_time)


def _strays(task: FileGroupTask, stat: WriteStat) -> bool:
    return (stat.file_id, stat.partition_path) != (task.file_id, task.partition_path)


def _schema_of(offer: Offer) -> pa.Schema:
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(offer.columns, validate=True)))
    except (pa.ArrowInvalid, OSError, binascii.Error, ValueError) as error:
        raise InvalidInputError(f"this is no schema: {error}", kind="offer") from None


def remote_work(
    context: TableContext, plan: WriteRequest, offer: Offer, channel: Channel, *, answer_ms: int
) -> PreparedWrite:
    """
    Return the prepared write of another process, as ``filegroups.writing.write.prepared`` does.

    Args:
        context: The committer's table.
        plan: The committer's write request, equal to the writer's except for offered fields.
        offer: The writer's offer.
        channel: The channel to the writer.
        answer_ms: As for ``RemoteWorkload``.

    Raises:
        InvalidInputError: The offer has no valid schema or partition paths.
        CorruptTableError: Its Avro schema is not valid.
    """
    return PreparedWrite(
        context=context,
        plan=plan,
        workload=RemoteWorkload(channel, offer, answer_ms=answer_ms),
        schema=TableSchema.from_avro(offer.avro_json),
        schema_before=offer.schema_before,
    )
