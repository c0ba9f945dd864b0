"""A decoded slot equals the encoded one, or it is refused (SLOT-3, SLOT-4)."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeline.codecs.commit_log import decode_slot, encode_slot
from timeline.errors import ChecksumError, CorruptTableError, UnsupportedTableError
from timeline.model.commit_metadata import Access, AccessedFileGroup, FileGroupId, WriteSet
from timeline.model.instant import Action
from timeline.model.slot import METADATA_VERSION, Batch, Slot, SlotKind, SlotOwner

RT, OWN, CT = "20260102030405004", "20260102030405009", "20260102030405011"
OWNER = SlotOwner(host="h", pid=7, writer_id="w", application="load")
SLOT = Slot(
    number=3,
    table_id="t",
    kind=SlotKind.COMMIT,
    action=Action.COMMIT,
    requested_time=RT,
    completion_time=CT,
    base=2,
    nonce="n",
    owner=OWNER,
)
texts = st.text(max_size=12)
slots = st.builds(
    Slot,
    number=st.just(3),
    table_id=texts,
    kind=st.sampled_from(SlotKind),
    action=st.sampled_from(Action),
    requested_time=st.just(RT),
    completion_time=st.just(CT),
    own_requested_time=st.sampled_from([None, OWN]),
    base=st.integers(0, 2**40),
    nonce=texts,
    owner=st.builds(
        SlotOwner,
        host=texts,
        pid=st.integers(0, 2**31),
        writer_id=texts,
        application=texts,
        fencing_token=st.none() | st.integers(0, 2**62),
    ),
    write_set=st.builds(
        WriteSet.of,
        st.lists(
            st.builds(
                AccessedFileGroup,
                file_group=st.builds(FileGroupId, texts, texts),
                access=st.sampled_from(Access),
                source_requested_time=st.none() | st.just(RT),
                files=st.lists(texts, max_size=2).map(tuple),
                written_bytes=st.integers(0, 2**50),
            ),
            max_size=3,
        ),
        st.lists(texts, max_size=2),
        st.lists(texts, max_size=2),
    ),
    schema_before=texts,
    schema_after=texts,
    batches=st.lists(st.builds(Batch, batch_id=texts, rows_inserted=st.integers(0, 9))).map(tuple),
    body=st.binary(max_size=20),
    plan=st.binary(max_size=20),
)
DATA_FILES = ("a/b/f-0_1-0-1_20260102030405004.parquet", ".f-0_20260102030405004.log.1_1-0-1")
SHOWN = (f".hoodie/timeline/{RT}_{CT}.commit", f".hoodie/timeline/{RT}.clean.requested")
HOSTILE = (
    ".hoodie/hoodie.properties",
    ".hoodie/timeline/hoodie.properties",
    f".hoodie/timeline/{OWN}.clean.requested",
    ".hoodie/f-0_1-0-1_20260102030405004.parquet",
    "../t/f-0_1-0-1_20260102030405004.parquet",
    "/etc/f-0_1-0-1_20260102030405004.parquet",
    "file:///etc/f-0_1-0-1_20260102030405004.parquet",
    "s3://bucket/f-0_1-0-1_20260102030405004.parquet",
    "a//f-0_1-0-1_20260102030405004.parquet",
    "a/./f-0_1-0-1_20260102030405004.parquet",
    "a\\b/f-0_1-0-1_20260102030405004.parquet",
    "a",
    "",
    "a/",
    "a/.hoodie_partition_metadata",
    "a/data.parquet",
)


def decoded(data: bytes) -> Slot:
    return decode_slot(data, path="slots/3", number=3)


def with_valid_trailer(**changes: object) -> bytes:
    """Return a slot of another release: changed fields and a valid trailer."""
    document = {**json.loads(encode_slot(SLOT).partition(b"\n")[0]), **changes}
    line = json.dumps(document).encode()
    return line + f"\n{zlib.crc32(line):08x} {len(line)}\n".encode()


@pytest.mark.spec("SLOT-4")
@given(slots)
def test_every_slot_is_decoded_as_it_was_encoded(slot: Slot):
    if slot.kind is SlotKind.PLAN:
        slot = replace(slot, completion_time=slot.requested_time)
    if slot.kind is SlotKind.METADATA:
        slot = replace(slot, least_engine_version=METADATA_VERSION)
    if slot.kind is SlotKind.CLEAN:
        slot = replace(slot, deletes=DATA_FILES)
    elif slot.kind in (SlotKind.VOID, SlotKind.UNSAVEPOINT, SlotKind.NOOP):
        slot = replace(slot, deletes=SHOWN)
    assert decoded(encode_slot(slot)) == slot


@pytest.mark.spec("SLOT-11")
@pytest.mark.parametrize("path", [*HOSTILE, *SHOWN])
def test_a_clean_deletes_data_files_only(path: str):
    with pytest.raises(CorruptTableError) as refused:
        decoded(encode_slot(replace(SLOT, kind=SlotKind.CLEAN, deletes=(DATA_FILES[0], path))))
    assert refused.value.kind == "hostile_slot"
    assert "hoodoo table end-slot" in str(refused.value)


ENDING = (SlotKind.VOID, SlotKind.UNSAVEPOINT, SlotKind.NOOP)


@pytest.mark.parametrize("path", [*HOSTILE, *DATA_FILES])
@pytest.mark.parametrize("kind", ENDING)
def test_a_slot_that_ends_an_instant_deletes_files_of_that_instant_only(path: str, kind: SlotKind):
    with pytest.raises(CorruptTableError) as refused:
        decoded(encode_slot(replace(SLOT, kind=kind, deletes=(path,))))
    assert refused.value.kind == "hostile_slot"


@pytest.mark.parametrize("path", [*HOSTILE, *DATA_FILES, *SHOWN])
@pytest.mark.parametrize("kind", [k for k in SlotKind if k not in (*ENDING, SlotKind.CLEAN)])
def test_any_other_slot_deletes_nothing(path: str, kind: SlotKind):
    with pytest.raises(CorruptTableError) as refused:
        decoded(encode_slot(replace(SLOT, kind=kind, deletes=(path,))))
    assert refused.value.kind == "hostile_slot"


@pytest.mark.parametrize("time", ["../hoodie.properties", "2026/01", "x", "9" * 18, "-1"])
def test_a_slot_has_times_where_times_belong(time: str):
    with pytest.raises(CorruptTableError):
        decoded(with_valid_trailer(rt=time))


def test_the_slot_of_a_plan_has_no_completion_time():
    plan = replace(SLOT, kind=SlotKind.PLAN, action=Action.COMPACTION, completion_time=RT)
    assert b'"ct":null' in encode_slot(plan)
    assert (decoded(encode_slot(plan)), plan.newest_time) == (plan, RT)


def test_equal_slots_are_equal_bytes():
    again = Slot(**{name: getattr(SLOT, name) for name in Slot.__slots__})
    assert encode_slot(again) == encode_slot(SLOT)


def test_the_bytes_are_one_line_and_a_trailer():
    line, trailer, rest = encode_slot(SLOT).split(b"\n")
    assert json.loads(line)["v"] == 1
    assert trailer == f"{zlib.crc32(line):08x} {len(line)}".encode()
    assert rest == b""


@given(st.integers(min_value=0))
def test_a_torn_slot_is_refused(cut: int):
    data = encode_slot(SLOT)
    with pytest.raises(ChecksumError) as caught:
        decoded(data[: cut % len(data)])
    assert caught.value.fields["path"] == "slots/3"


@given(st.integers(min_value=0), st.integers(1, 255))
def test_an_edited_slot_is_refused(place: int, change: int):
    data = bytearray(encode_slot(SLOT))
    data[place % len(data)] ^= change
    with pytest.raises(ChecksumError):
        decoded(bytes(data))


def test_more_after_the_trailer_is_refused():
    with pytest.raises(ChecksumError):
        decoded(encode_slot(SLOT) + b"x")


def test_a_slot_under_another_number_is_refused():
    with pytest.raises(CorruptTableError):
        decode_slot(encode_slot(SLOT), path="slots/4", number=4)


@pytest.mark.spec("SLOT-3")
@pytest.mark.parametrize("changes", [{"v": 99}, {"kind": "merge"}, {"v": 99, "fgs": "else"}])
def test_a_newer_layout_or_kind_stops_writing(changes: dict[str, object]):
    with pytest.raises(UnsupportedTableError):
        decoded(with_valid_trailer(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"v": None},
        {"n": "x"},
        {"action": "unheard"},
        {"fgs": [{}]},
        {"fgs": 7},
        {"body": "***"},
        {"schema": None},
        {"batches": [1]},
        {"pid": float("inf")},
    ],
)
def test_other_damage_is_refused(changes: dict[str, object]):
    with pytest.raises(CorruptTableError):
        decoded(with_valid_trailer(**changes))


def test_a_slot_that_is_no_document_is_refused():
    line = b"[1]"
    with pytest.raises(CorruptTableError):
        decoded(line + f"\n{zlib.crc32(line):08x} {len(line)}\n".encode())


@pytest.mark.spec("RB-8")
def test_the_instant_of_an_abort_is_the_rollback():
    abort = Slot(
        **{
            **{name: getattr(SLOT, name) for name in Slot.__slots__},
            "kind": SlotKind.ABORT,
            "own_requested_time": OWN,
        }
    )
    assert (SLOT.instant_time, abort.instant_time) == (RT, OWN)
    assert abort.newest_time == CT
    assert OWNER.text == "load (pid 7 on h)"
