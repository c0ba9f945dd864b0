"""The encoding of a truncation point; it names instants only."""

from __future__ import annotations

import json

import pytest

from timeline.codecs.commit_log import (
    CommittedBatch,
    TruncationPoint,
    decode_truncation_point,
    encode_truncation_point,
)
from timeline.errors import CorruptTableError
from timeline.model.slot import Batch

BOUNDARY = TruncationPoint(
    number=7,
    time="20260102030405003",
    completed=("20260102030405000_20260102030405003.commit",),
    batches=(
        CommittedBatch(
            batch=Batch(batch_id="load 1", rows_inserted=3),
            action="commit",
            requested_time="20260102030405000",
            completion_time="20260102030405003",
        ),
    ),
)


def test_a_truncation_point_is_decoded_as_it_was_encoded():
    assert decode_truncation_point(encode_truncation_point(BOUNDARY), path="b") == BOUNDARY


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        *(
            json.dumps({"number": 1, "time": "", "completed": [name], "batches": []}).encode()
            for name in ("../x", "20260102030405000.commit.requested", "a.commit", 1)
        ),
    ],
)
def test_a_damaged_or_hostile_truncation_point_is_refused(data: bytes):
    with pytest.raises(CorruptTableError) as refused:
        decode_truncation_point(data, path="b")
    assert refused.value.fields["path"] == "b"
