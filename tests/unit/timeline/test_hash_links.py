"""The cost of a hash link for a commit, and its content after a lost slot (SLOT-7)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.unit.timeline.engine import (
    BRISK,
    Behind,
    StillClock,
    new_table,
    opened,
    upsert,
    world_of,
)
from tests.unit.timeline.memory import MemoryStorage
from tests.unit.timeline.recording import RecordingStorage
from tests.unit.timeline.test_commit_log import Unanswered, slot
from timeline.codecs.commit_log import decode_slot, encode_slot, is_signed_by
from timeline.commit_log import CommitLog
from timeline.model.file_names import SLOTS, slot_path
from timeline.model.slot import SlotSigning, TamperEvidence, digest_of
from timeline.properties.setting_enums import CommitLockMode

KEY = b"k" * 32
SIGNED = SlotSigning(evidence=TamperEvidence.HMAC, keys=(KEY,))
SEALED = replace(BRISK, slot_signing=SIGNED)
ROWS = [{"id": "1", "p": "x", "ts": 1}]


def raw(storage: MemoryStorage) -> list[bytes]:
    return [storage.read(f"{SLOTS}/{name}") for name in sorted(storage.names(SLOTS))]


def befores(storage: MemoryStorage) -> list[str]:
    return [json.loads(data.partition(b"\n")[0])["seal"]["before"] for data in raw(storage)]


def expected(storage: MemoryStorage) -> list[str]:
    return ["0" * 64, *(digest_of(data) for data in raw(storage)[:-1])]


def test_a_signed_slot_is_decoded_as_it_was_encoded_and_is_signed():
    sealed = replace(slot(1), hash_link=SIGNED.link("", b""))
    data = encode_slot(sealed, KEY)
    found = decode_slot(data, path="p", number=1)
    assert (found, found.digest) == (sealed, digest_of(data))
    assert is_signed_by(data, KEY)
    assert not is_signed_by(data, b"o" * 32)
    assert not is_signed_by(encode_slot(sealed), KEY)


def test_every_byte_of_a_signed_slot_counts():
    data = encode_slot(replace(slot(1), hash_link=SIGNED.link("", b"")), KEY)
    line = data.index(b"\n")
    for place in range(line):
        changed = bytearray(data)
        changed[place] ^= 1
        assert not is_signed_by(bytes(changed), KEY), place


@pytest.mark.spec("UNK-1")
def test_an_unanswered_create_is_repeated_with_the_same_bytes():
    class RecordingCreates(Behind):
        sent: list[bytes] = []  # noqa: RUF012

        def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
            self.sent.append(data)
            self.inner.create(path, data, durable=durable)

    storage = RecordingCreates(Unanswered(MemoryStorage(), "lost", "applied"))
    commit_log = CommitLog(world_of(storage), "t", signing=SIGNED)
    assert commit_log.take(replace(slot(1), hash_link=SIGNED.link("", b"")))
    assert len(set(storage.sent)) == 1
    assert len(storage.sent) == 3
    assert commit_log.read(1).digest == digest_of(storage.inner.read(slot_path(1)))


def test_hash_links_cost_no_further_requests():
    calls = []
    for limits in (BRISK, SEALED):
        observed = RecordingStorage(MemoryStorage())
        table = new_table(observed, limits=limits, clock=StillClock())  # no heartbeats
        for _ in range(3):
            upsert(table, ROWS)
        calls.append([one.operation for one in observed.calls])
    assert calls[0] == calls[1]


@pytest.mark.spec("SLOT-7")
def test_a_writer_that_lost_a_number_links_its_slot_to_the_winner():
    """Another writer commits between the refresh and the create, so the link is computed again."""
    storage = MemoryStorage()
    table = new_table(storage, limits=SEALED)
    upsert(table, ROWS)

    class Outrun(Behind):
        armed = True

        def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
            if path == slot_path(2) and self.armed:
                self.armed = False
                upsert(other_table, [{"id": "9", "p": "z", "ts": 1}])
            self.inner.create(path, data, durable=durable)

    limits = replace(SEALED, publish_lock=CommitLockMode.NONE)
    other_table = opened(table, limits=limits)
    upsert(opened(table, storage=Outrun(storage), limits=limits), [{"id": "2", "p": "y", "ts": 1}])
    assert len(raw(storage)) == 3
    assert befores(storage) == expected(storage)
