"""Messages between a committer and writers of other processes (GRP-8)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import lru_cache
from typing import Annotated, ClassVar, Final, Literal, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from filegroups.keys.bucketing import ConsistentHashAssigner, SimpleBucketAssigner
from filegroups.keys.insert_buckets import InsertBucket
from filegroups.keys.keys import VirtualKeys
from filegroups.schema.schema import KEY_COLUMN, PARTITION_COLUMN, TableSchema
from filegroups.writing.write_request import CommitResult, WriteRequest
from timeline.context import TableContext
from timeline.model.commit_metadata import WriteStat
from timeline.model.instant_time import InstantTime
from timeline.model.write_set import FileGroupId

__all__ = [
    "MESSAGE_BYTES_MAX",
    "OFFER_BYTES_MAX",
    "AssignRows",
    "Assigned",
    "CandidateFile",
    "Channel",
    "CountRows",
    "Failed",
    "FallBack",
    "GiveRows",
    "GivenRows",
    "MemberResult",
    "Message",
    "Offer",
    "OutcomeUnknown",
    "PeerLostError",
    "PeerSilentError",
    "Precompute",
    "Precomputed",
    "RewriteTasks",
    "Rewritten",
    "RowsCounted",
    "TagKeys",
    "Tagged",
    "WasCommitted",
    "are_rows_of",
    "decode_message",
    "decoded_rows",
    "encode_message",
    "encoded_rows",
    "offer_of",
    "request_fields",
]


# ---- Prepared rows as text, from a writer to the committer that writes them (GRP-8)


def are_rows_of(rows: pa.Table, schema: TableSchema) -> bool:
    """Return whether prepared rows have all columns and keys, as ``decoded_rows`` demands."""
    keys, wanted = (KEY_COLUMN, PARTITION_COLUMN), _columns(schema)
    return [(field.name, field.type) for field in rows.schema] == wanted and not any(
        rows.column(name).null_count for name in keys
    )


def _columns(schema: TableSchema) -> list[tuple[str, pa.DataType]]:
    columns = [(field.name, field.type) for field in schema.arrow]
    return [*columns, (KEY_COLUMN, pa.string()), (PARTITION_COLUMN, pa.string())]


def encoded_rows(rows: pa.Table) -> str:
    """Return rows as Arrow IPC in base 64."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return base64.b64encode(sink.getvalue()).decode("ascii")


def decoded_rows(
    text: str, schema: TableSchema, partition_paths: Collection[str], *, bytes_max: int
) -> pa.Table:
    """
    Decode rows that ``encoded_rows`` made in another process.

    Args:
        text: The received text.
        schema: The schema the rows were prepared for.
        partition_paths: The partitions the rows may belong to.
        bytes_max: Their limit in memory, in bytes.

    Raises:
        ValueError: The text has no rows, or not the expected ones.
    """
    try:
        with pa.ipc.open_stream(pa.py_buffer(base64.b64decode(text, validate=True))) as stream:
            rows = stream.read_all()
        rows.validate(full=True)
    except (pa.ArrowException, OSError, binascii.Error, ValueError) as error:
        raise ValueError(f"these are no rows: {error}") from None
    if [(field.name, field.type) for field in rows.schema] != _columns(schema):
        raise ValueError(f"rows of other columns: {', '.join(rows.schema.names)[:300]!a}")
    if rows.nbytes > bytes_max:
        raise ValueError(f"more rows than were offered: {rows.nbytes} bytes")
    keys, paths = rows.column(KEY_COLUMN), rows.column(PARTITION_COLUMN)
    if keys.null_count or paths.null_count:
        raise ValueError("rows without a key or a partition path")
    if not set(pc.unique(paths).to_pylist()) <= set(partition_paths):
        raise ValueError("rows of partitions that were not offered")
    return rows


# ---- Messages about one write, as JSON
#
# The writer offers a write. The committer requests that it tag keys, route rows and write files,
# and finally sends the outcome. No message can name code: each is one of these values, checked
# field by field, or it is refused (SEC3). Rows are sent only if they are few, or if the committer
# coalesces them (GRP-8).

MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
#: Limit of an offer: a committer keeps up to this many bytes for each connection.
OFFER_BYTES_MAX: Final = 4 * 1024 * 1024

_STRICT: Final = ConfigDict(extra="forbid", strict=True)


class PeerLostError(Exception):
    """The other side is closed, silent for too long, or sent an invalid message."""


class PeerSilentError(PeerLostError):
    """The other side did not answer in time; it may still live and work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A writer offers a write with prepared rows."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    kind: Literal["offer"] = "offer"
    release: str  # of the writer; another release may read tasks differently
    table_id: str
    operation: str
    partial: bool
    batch_id: str | None
    plan: Mapping[str, str]  # ``offer_of``: the committer's must be equal
    avro_json: str  # the schema to write with
    schema_before: str
    columns: str  # the schema of the incoming rows, Arrow IPC in base 64
    partition_paths: tuple[str, ...]
    rows_bytes: int | None = None  # size of the prepared rows in memory, if it can send them
    rows: str | None = None  # the rows, if they are few: Arrow IPC in base 64


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateFile:
    """A base file that may contain keys."""

    file_id: str
    path: str
    virtual_keys: VirtualKeys | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TagKeys:
    """Request: find which rows' keys are in which of these files, by partition path."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    kind: Literal["tag"] = "tag"
    candidates: Mapping[str, tuple[CandidateFile, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tagged:
    """Answer: row counts of new keys by partition path, and of known keys by file group."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    kind: Literal["tagged"] = "tagged"
    inserts: Mapping[str, int]
    updates: tuple[tuple[FileGroupId, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CountRows:
    """Request: count rows by partition path and bucket of a bucket index."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    kind: Literal["spread"] = "spread"
    remainder: SimpleBucketAssigner | None = None
    ring: ConsistentHashAssigner | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsCounted:
    """Answer: partition path, bucket, number of rows."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    kind: Literal["was_spread"] = "was_spread"
    rows: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignRows:
    """Request: route new records to these insert buckets, each with its file id."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    kind: Literal["assign"] = "assign"
    buckets: tuple[tuple[InsertBucket, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """Answer: the records are routed."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    kind: Literal["assigned"] = "assigned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Precompute:
    """Request: make the small files of these tasks in memory, and write nothing yet."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    kind: Literal["make_ahead"] = "make_ahead"
    tasks: tuple[str, ...]  # as ``FileGroupTask.to_json``


@dataclass(frozen=True, slots=True, kw_only=True)
class Precomputed:
    """Answer: the small files are made, where possible."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    kind: Literal["made_ahead"] = "made_ahead"


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteTasks:
    """Request: write these file groups, for the instant of this requested time."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    kind: Literal["rewrite"] = "rewrite"
    requested_time: InstantTime
    tasks: tuple[str, ...]  # as ``FileGroupTask.to_json``


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """Answer: the stats of each task, and all paths that may have been created."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    kind: Literal["rewritten"] = "rewritten"
    stats: tuple[tuple[WriteStat, ...], ...]
    attempted: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveRows:
    """Request: send the prepared rows, for the committer to write in this instant."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    kind: Literal["give"] = "give"
    requested_time: InstantTime
    name: str  # of this write in the commit's results


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenRows:
    """Answer: all rows; from now on the writer knows the instant that may have them."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    kind: Literal["given"] = "given"
    rows: str | None  # Arrow IPC in base 64; None if the offer had them


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberResult:
    """The result of one write in an instant of several."""

    rows_inserted: int
    rows_updated: int
    rows_deleted: int
    files_written: int
    bytes_written: int

    @classmethod
    def of(cls, receipt: CommitResult) -> MemberResult:
        """Return the member's part of a commit result."""
        return cls(**{each.name: getattr(receipt, each.name) for each in fields(cls)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """Answer: the request failed; these paths may have been created."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    kind: Literal["failed"] = "failed"
    why: str
    attempted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WasCommitted:
    """The write is committed, in an instant with ``group - 1`` others."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    kind: Literal["published"] = "published"
    requested_time: InstantTime
    completion_time: InstantTime
    group: int
    lost_slots: int
    own: MemberResult


@dataclass(frozen=True, slots=True, kw_only=True)
class FallBack:
    """Nothing of the write is committed or left; the writer commits it alone."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    kind: Literal["alone"] = "alone"
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeUnknown:
    """The committer does not know the group's outcome; the writer looks it up."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    kind: Literal["unknown"] = "unknown"


Message = (
    Offer
    | TagKeys
    | Tagged
    | CountRows
    | RowsCounted
    | AssignRows
    | Assigned
    | Precompute
    | Precomputed
    | RewriteTasks
    | Rewritten
    | GiveRows
    | GivenRows
    | Failed
    | WasCommitted
    | FallBack
    | OutcomeUnknown
)

_MESSAGES: Final[TypeAdapter[Message]] = TypeAdapter(
    Annotated[Message, Field(discriminator="kind")]
)


class Channel(Protocol):
    """One connection between a committer and a writer; one side sends at a time."""

    def send(self, message: Message) -> None:
        """
        Send one message.

        Raises:
            PeerLostError: The message cannot be sent.
        """

    def receive(self, wait_ms: int) -> Message:
        """
        Wait for the next message.

        Raises:
            PeerLostError: No message arrived within ``wait_ms``, or none can.
        """

    def close(self) -> None:
        """Close the connection, which the other side notices. A second call is no error."""


def encode_message(message: Message) -> bytes:
    """Return one message as JSON."""
    return _MESSAGES.dump_json(message)


def decode_message(data: bytes) -> Message:
    """
    Decode a message that ``encode_message`` made.

    Raises:
        PeerLostError: The bytes are no message: another kind, a field too many or too few, or
            a value of another type.
    """
    try:
        return _MESSAGES.validate_json(data, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise PeerLostError(f"no message: {first['loc']} {first['msg']}") from None


def request_fields(plan: WriteRequest) -> dict[str, str]:
    """
    Return the fields of a write request as texts, except its batch: equal texts, equal requests.

    Two processes compare these texts instead of trusting a received request.
    """
    found = {"plan": type(plan).__name__}
    for each in fields(plan):
        if each.name == "batch_id":
            continue
        part = getattr(plan, each.name)
        try:
            found.update(_texts_of(each.name, part))
        except TypeError:  # it contains a mapping, which is not hashable
            _gather(each.name, part, found)
    return found


def offer_of(context: TableContext, plan: WriteRequest) -> dict[str, str]:
    """
    Return ``request_fields``, the table's location, and the settings of validation, as texts.

    A copy of a table has the same identity, so the location counts, too (GRP-4).
    """
    limits = context.limits
    return {
        **request_fields(plan),
        "table": context.world.storage.base_uri,
        "judged.strategy": limits.strategy.name,
        "judged.clustering_updates": repr(limits.clustering_updates),
        "judged.cancels_met_plans": repr(limits.cancels_met_plans),
    }


@lru_cache(maxsize=64, typed=True)
def _texts_of(name: str, part: Hashable) -> Mapping[str, str]:
    """Return the texts of one field; cached, because requests for a table rarely differ."""
    found: dict[str, str] = {}
    _gather(name, part, found)
    return found


def _gather(name: str, value: object, found: dict[str, str]) -> None:
    if is_dataclass(value) and not isinstance(value, type):
        found[name] = type(value).__name__
        for each in fields(value):
            _gather(f"{name}.{each.name}", getattr(value, each.name), found)
    elif isinstance(value, Mapping):
        found[name] = repr(sorted((str(key), repr(each)) for key, each in value.items()))
    elif isinstance(value, frozenset):
        found[name] = repr(sorted(map(repr, value)))
    elif isinstance(value, Enum):
        found[name] = f"{type(value).__name__}.{value.name}"
    else:
        found[name] = repr(value)
