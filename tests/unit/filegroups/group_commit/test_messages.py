"""Messages of a group: decoding returns the encoded message, and refuses anything else."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from filegroups.files.parquet_layout import ParquetSettings
from filegroups.group_commit.messages import (
    FallBack,
    Joined,
    JoinInstant,
    MemberResult,
    Message,
    PeerLostError,
    WasCommitted,
    decode_message,
    encode_message,
    request_fields,
)
from tests.unit.timeline.engine import new_table, planned
from timeline.model.commit_metadata import WriteOperation

MESSAGES: list[Message] = [
    JoinInstant(requested_time="20260101000000000", name="3"),
    Joined(),
    FallBack(why="ünfit"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: each.kind)
def test_a_message_is_decoded_as_it_was_encoded(message: Message) -> None:
    assert decode_message(encode_message(message)) == message


OWN = {
    "rows_inserted": 1,
    "rows_updated": 2,
    "rows_deleted": 3,
    "files_written": 4,
    "bytes_written": 5,
}
PUBLISHED = {
    "kind": "published",
    "requested_time": "20260101000000000",
    "completion_time": "20260101000000001",
    "group": 2,
    "lost_slots": 0,
    "own": OWN,
}
HOSTILE: dict[str, Any] = {
    "nothing": {},
    "a list": [],
    "another kind": {"kind": "run"},
    "a field too many": {**PUBLISHED, "more": 1},
    "a field too few": {key: value for key, value in PUBLISHED.items() if key != "group"},
    "a number as text": {**PUBLISHED, "group": "2"},
    "a broken number": {**PUBLISHED, "group": 2.5},
    "true for a number": {**PUBLISHED, "group": True},
    "a part too few": {**PUBLISHED, "own": {"rows_inserted": 1}},
    "a member result of another type": {**PUBLISHED, "own": {**OWN, "rows_deleted": "3"}},
    "no text": {**PUBLISHED, "requested_time": None},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_invalid_messages_are_refused(name: str) -> None:
    assert decode_message(json.dumps(PUBLISHED).encode()) == WasCommitted(
        requested_time="20260101000000000",
        completion_time="20260101000000001",
        group=2,
        lost_slots=0,
        own=MemberResult(**OWN),
    )
    with pytest.raises(PeerLostError):
        decode_message(json.dumps(HOSTILE[name]).encode())


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"{", b"[" * 100_000, b"\x80\x04N."])
def test_bytes_that_are_no_json_are_refused(data: bytes) -> None:
    with pytest.raises(PeerLostError):
        decode_message(data)


def test_write_requests_are_serialized_field_by_field_except_the_batch() -> None:
    table = new_table()
    one = request_fields(planned(table, WriteOperation.UPSERT, batch_id="a"))
    assert one == request_fields(planned(table, WriteOperation.UPSERT, batch_id="b"))
    other = request_fields(planned(table, WriteOperation.UPSERT, detect_early=False))
    assert {name for name in one if one[name] != other[name]} == {"detect_early"}
    inserts = request_fields(planned(table, WriteOperation.INSERT))
    assert "rules.operation" in {name for name in one if one[name] != inserts[name]}


def test_each_change_of_a_write_request_is_serialized_also_after_others() -> None:
    plan = planned(new_table(), WriteOperation.UPSERT)
    plans = {
        "files.small_files_max": replace(plan, files=replace(plan.files, small_files_max=7)),
        "files.parquet.page_bytes": replace(
            plan, files=replace(plan.files, parquet=ParquetSettings(page_bytes=7))
        ),
        "extra_metadata": replace(plan, extra_metadata={"a": "7"}),  # a mapping, which has no hash
        "rate_limited": replace(plan, rate_limited=False),
    }
    for _ in range(2):
        before = request_fields(plan)
        for name, changed in plans.items():
            texts = request_fields(changed)
            assert {one for one in texts if texts[one] != before.get(one)} == {name}


def test_serialized_fields_of_a_write_request_belong_to_the_caller() -> None:
    plan = planned(new_table(), WriteOperation.UPSERT)
    request_fields(plan).clear()
    assert request_fields(plan)["plan"] == "WriteRequest"
    assert "files.bloom" in request_fields(plan)
