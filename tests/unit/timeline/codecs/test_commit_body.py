"""The body of a commit contains the fencing token, although it is encoded before the lock."""

from __future__ import annotations

import fastavro
import pytest

from tests.unit.timeline.engine import new_table, upsert
from timeline.codecs import instant_avro
from timeline.codecs.instant_avro import FENCING_TOKEN_KEY, CommitBody, decode_commit, encode_commit
from timeline.model.commit_metadata import CommitMetadata, WriteStat

STATS = {"p": (WriteStat(file_id="f-0", path="p/f-0_0-1-1_1.parquet", num_inserts=3),)}
COMMIT = CommitMetadata(
    partition_to_write_stats=STATS,
    operation_type="UPSERT",
    extra_metadata={"schema": "{}", "hoodoo.writer": "w", "zone": "UTC"},
)


@pytest.mark.parametrize("replaced", [None, {}, {"p": ("f-1",)}])
def test_the_token_is_read_back_with_everything_else(replaced) -> None:
    metadata = CommitMetadata(
        partition_to_write_stats=STATS,
        operation_type="UPSERT",
        extra_metadata=COMMIT.extra_metadata,
        partition_to_replace_file_ids=replaced,
    )
    body = CommitBody(metadata)
    found = decode_commit(body.bytes_with(17))
    assert found.extra_metadata == {**COMMIT.extra_metadata, FENCING_TOKEN_KEY: "0" * 18 + "17"}
    assert found == body.metadata_with(17)
    assert body.metadata_with(None) == metadata


def test_nothing_is_encoded_under_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    body = CommitBody(COMMIT)
    monkeypatch.delattr(instant_avro, "encode_commit")
    assert decode_commit(body.bytes_with(2**63 - 1)).extra_metadata[FENCING_TOKEN_KEY] == (
        "09223372036854775807"
    )


def test_another_reader_sees_a_plain_text(tmp_path) -> None:
    path = tmp_path / "commit"
    path.write_bytes(CommitBody(COMMIT).bytes_with(5))
    with path.open("rb") as file:
        [record] = list(fastavro.reader(file))
    assert record["extraMetadata"][FENCING_TOKEN_KEY] == "00000000000000000005"
    assert record["operationType"] == "UPSERT"


def test_without_a_token_the_key_is_missing() -> None:
    assert CommitBody(COMMIT).bytes_with(None) == encode_commit(COMMIT)


def test_a_token_that_a_caller_wrote_is_not_kept() -> None:
    lying = CommitMetadata(extra_metadata={FENCING_TOKEN_KEY: "99"})
    assert decode_commit(CommitBody(lying).bytes_with(None)).extra_metadata == {}


def test_text_equal_to_the_placeholder_does_not_move_the_token() -> None:
    odd = CommitMetadata(extra_metadata={"a": instant_avro._ENTRY.decode("ascii")})
    found = decode_commit(CommitBody(odd).bytes_with(7)).extra_metadata
    assert found == {**odd.extra_metadata, FENCING_TOKEN_KEY: "00000000000000000007"}


def test_a_token_of_more_digits_is_kept_whole() -> None:
    found = decode_commit(CommitBody(COMMIT).bytes_with(10**22)).extra_metadata
    assert found[FENCING_TOKEN_KEY] == str(10**22)


def test_a_commit_contains_the_fencing_token_of_its_slot() -> None:
    table = new_table()
    for version in (1, 2):
        upsert(table, [{"id": "a", "p": "x", "ts": version, "v": version}])
    commit_log = table.context.commit_log
    slots = [slot for number in (1, 2) if (slot := commit_log.read(number))]
    tokens = [slot.owner.fencing_token for slot in slots]
    assert all(token is not None for token in tokens)
    assert tokens == sorted(set(tokens))
    written = [decode_commit(slot.body).extra_metadata[FENCING_TOKEN_KEY] for slot in slots]
    assert [int(text) for text in written] == tokens
    remembered = [
        table.context.commits.read(instant).extra_metadata[FENCING_TOKEN_KEY]
        for instant in table.context.active().completed_writes
    ]
    assert remembered == written
