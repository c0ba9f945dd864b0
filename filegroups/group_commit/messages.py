"""Messages between a committer and writers of other processes (GRP-8)."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import Annotated, ClassVar, Final, Literal, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from filegroups.schema.schema import KEY_COLUMN, PARTITION_COLUMN, TableSchema
from filegroups.writing.write_request import CommitResult, RowRules, WriteRequest
from timeline.context import TableContext
from timeline.model.instant_time import InstantTime

# ---- Prepared rows as bytes, from a writer to the committer that writes them (GRP-8)


def are_rows_of(rows: pa.Table, schema: TableSchema, rules: RowRules) -> bool:
    """Return whether prepared rows have the columns and keys that ``decoded_rows`` demands."""
    wanted: list[tuple[str, pa.DataType]] = []
    if not rules.operation.traits.deletes_keys:
        names = set(rows.schema.names)
        wanted = [(f.name, f.type) for f in schema.arrow if not rules.partial or f.name in names]
    wanted += [(KEY_COLUMN, pa.string()), (PARTITION_COLUMN, pa.string())]
    if [(field.name, field.type) for field in rows.schema] != wanted:
        return False
    if rows.column(PARTITION_COLUMN).null_count:
        return False
    return rules.keys.automatic or not rows.column(KEY_COLUMN).null_count


def encoded_rows(rows: pa.Table) -> bytes:
    """Return rows as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return bytes(sink.getvalue())


def decoded_rows(
    data: bytes, schema: TableSchema, rules: RowRules, partition_paths: Collection[str]
) -> pa.Table:
    """
    Decode rows that ``encoded_rows`` made in another process.

    Args:
        data: The received bytes.
        schema: The schema the rows were prepared for.
        rules: The rules they were prepared by.
        partition_paths: The partitions the rows may belong to.

    Raises:
        ValueError: They are no rows, or not the expected ones.
    """
    try:
        with pa.ipc.open_stream(pa.py_buffer(data)) as stream:
            rows = stream.read_all()
        rows.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ValueError(f"these are not rows: {error}") from None
    if not are_rows_of(rows, schema, rules):
        raise ValueError(f"the rows have other columns, or no keys: {rows.schema.names}"[:300])
    if rows.nbytes > _DECODED_BYTES_MAX:
        raise ValueError(f"more rows than a writer may offer: {rows.nbytes} bytes")
    if not set(pc.unique(rows.column(PARTITION_COLUMN)).to_pylist()) <= set(partition_paths):
        raise ValueError("the rows have partitions that were not offered")
    return rows


# ---- Messages about one write, as JSON
#
# The writer offers a write with its rows. The committer names the instant that will have them, and
# finally sends the outcome. No message can name code: each is one of these values, checked field by
# field, or it is refused (SEC3).

#: Limit of the prepared rows of an offer, in memory. A bigger write commits alone: its files cost
#: more than its instant, and writers write them at the same time (docs/design/committer.md).
OFFERED_BYTES_MAX: Final = 3 * 512 * 1024
#: Limit of one message: the rows, and the schemas and partition paths of wide tables. A committer
#: keeps up to this many bytes for each connection.
MESSAGE_BYTES_MAX: Final = 8 * 1024 * 1024
# A slice of rows is smaller before it is sent than its buffers after.
_DECODED_BYTES_MAX: Final = 2 * OFFERED_BYTES_MAX

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
    rows: bytes  # the prepared rows, an Arrow IPC stream; it follows the JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinInstant:
    """Request: note the instant that will have the rows, and the write's name in it."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    kind: Literal["join"] = "join"
    requested_time: InstantTime
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Answer: the writer knows where to look up its outcome."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    kind: Literal["joined"] = "joined"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberResult:
    """The result of one write in an instant of several."""

    rows_inserted: int
    rows_updated: int
    rows_deleted: int
    files_written: int
    bytes_written: int

    @classmethod
    def of(cls, result: CommitResult) -> MemberResult:
        """Return the member's part of a commit result."""
        return cls(**{each.name: getattr(result, each.name) for each in fields(cls)})


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


Message = Offer | JoinInstant | Joined | WasCommitted | FallBack | OutcomeUnknown

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
    """Return one message as a line of JSON, which the rows of an offer follow."""
    if not isinstance(message, Offer):
        return _MESSAGES.dump_json(message)
    return _MESSAGES.dump_json(replace(message, rows=b"")) + b"\n" + message.rows


def decode_message(data: bytes) -> Message:
    """
    Decode a message that ``encode_message`` made.

    Raises:
        PeerLostError: The bytes are no message: another kind, a field too many or too few, or
            a value of another type.
    """
    try:
        line, _, rows = data.partition(b"\n")
        message = _MESSAGES.validate_json(line, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise PeerLostError(f"no message: {first['loc']} {first['msg']}") from None
    return replace(message, rows=rows) if isinstance(message, Offer) else message


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
        "table": context.ports.storage.base_uri,
        "judged.strategy": limits.strategy.name,
        "judged.clustering_updates": repr(limits.clustering_updates),
        "judged.cancels_met_plans": repr(limits.cancels_conflicting_plans),
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
