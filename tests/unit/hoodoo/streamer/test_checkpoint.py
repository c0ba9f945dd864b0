"""The entries of a checkpoint in a commit: Hudi's keys, and those of a named streamer."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hoodoo.streamer.checkpoint import CheckpointKeys, StoredCheckpoint

UNNAMED, NAMED = CheckpointKeys(identifier=None), CheckpointKeys(identifier="b")
TIME = "20260101000000000"


def stored(value: str | None, reset: str | None = None) -> StoredCheckpoint:
    return StoredCheckpoint(instant=TIME, value=value, source=None, reset=reset, ignored=None)


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({}, None),
        ({"schema": "x", "hoodoo.streamer.checkpoint.b": "5"}, None),
        ({"streamer.checkpoint.key.v2": "5"}, stored("5")),
        ({"deltastreamer.checkpoint.key": "4"}, stored("4")),  # of a table of version 6
        ({"deltastreamer.checkpoint.key": "4", "streamer.checkpoint.key.v2": "5"}, stored("5")),
        ({"streamer.checkpoint.reset.key.v2": "3"}, stored(None, "3")),
        ({"streamer.checkpoint.key.v2": "", "deltastreamer.checkpoint.reset_key": "3"},
         stored(None, "3")),
    ],
)  # fmt: skip
def test_the_keys_of_hudi_are_read(
    extra: Mapping[str, str], expected: StoredCheckpoint | None
) -> None:
    assert UNNAMED.read(TIME, extra) == expected


def test_entries_are_those_of_java_and_are_read_back() -> None:
    entries = UNNAMED.write("5", "file:/in", reset="3", ignored="x")
    assert entries == {
        "streamer.checkpoint.key.v2": "5",
        "streamer.checkpoint.reset.key.v2": "3",
        "deltastreamer.checkpoint.ignore_key": "x",
        "hoodoo.streamer.source": "file:/in",
    }
    named = NAMED.write("5", "file:/in", reset="3", ignored="x")
    assert not set(named) & set(entries)
    assert NAMED.read(TIME, {**UNNAMED.write("9", "f", reset=None, ignored=None), **named}) == (
        StoredCheckpoint(instant=TIME, value="5", source="file:/in", reset="3", ignored="x")
    )


def test_each_commit_of_a_stream_has_one_successor() -> None:
    ids = {keys.batch_id(one) for keys in (UNNAMED, NAMED) for one in (None, stored("5"))}
    assert len(ids) == 4
    assert UNNAMED.batch_id(stored("5")) == UNNAMED.batch_id(stored("6"))
