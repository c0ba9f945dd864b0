"""Frames of log files: every block of Java's is found, torn ones are skipped, damage is named."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path

import pytest

from tests.interop import golden_tables
from timeline.codecs.log_blocks import (
    BlockType,
    BytesSource,
    HeaderKey,
    LogBlock,
    block_frame,
    encode_block,
    iter_blocks,
    read_content,
)
from timeline.errors import CorruptTableError, InvalidInputError, UnsupportedTableError

MAGIC = b"#HUDI#"
TIME = "20261121101051345"
HEADER = {HeaderKey.INSTANT_TIME: TIME, HeaderKey.SCHEMA: '"long"'}


class CountingSource:
    """A source that records its reads."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.reads: list[tuple[int, int]] = []

    def read_at(self, offset: int, length: int, /) -> bytes:
        self.reads.append((offset, length))
        return self.data[offset : offset + length]


def blocks_of(data: bytes) -> list[LogBlock]:
    return list(iter_blocks(BytesSource(data), len(data), path="p/x.log"))


def shape_of(data: bytes) -> list[tuple[str, int, int]]:
    return [(one.block_type.name, one.offset, one.end_offset) for one in blocks_of(data)]


def block(content: bytes = b"content", block_type: BlockType = BlockType.AVRO_DATA) -> bytes:
    return encode_block(block_type, HEADER, content)


def with_int(data: bytes, offset: int, value: int) -> bytes:
    return data[:offset] + struct.pack(">i", value) + data[offset + 4 :]


def with_long(data: bytes, offset: int, value: int) -> bytes:
    return data[:offset] + struct.pack(">q", value) + data[offset + 8 :]


def test_a_block_is_framed_as_the_format_says() -> None:
    header = {HeaderKey.INSTANT_TIME: "1", HeaderKey.TARGET_INSTANT_TIME: "é"}
    expected = (
        b"#HUDI#"
        + bytes([0, 0, 0, 0, 0, 0, 0, 52])  # size: everything after it
        + bytes([0, 0, 0, 1])  # log format version
        + bytes([0, 0, 0, 1])  # DELETE
        + bytes([0, 0, 0, 2])  # two header entries
        + bytes([0, 0, 0, 0, 0, 0, 0, 1])
        + b"1"
        + bytes([0, 0, 0, 1, 0, 0, 0, 2])
        + b"\xc3\xa9"
        + bytes([0, 0, 0, 0, 0, 0, 0, 1])  # content length
        + b"c"
        + bytes([0, 0, 0, 0])  # empty footer
        + bytes([0, 0, 0, 0, 0, 0, 0, 58])  # reverse pointer: size and six
    )
    assert encode_block(BlockType.DELETE, header, b"c") == expected
    (one,) = blocks_of(expected)
    assert (one.block_type, one.header) == (BlockType.DELETE, header)
    assert (one.offset, one.end_offset) == (0, 66)
    assert read_content(BytesSource(expected), one) == b"c"


def test_streamed_content_is_framed_by_head_and_tail() -> None:
    head, tail = block_frame(BlockType.PARQUET_DATA, HEADER, 7)
    assert head + b"content" + tail == block(block_type=BlockType.PARQUET_DATA)


def test_a_header_answers_by_name() -> None:
    header = {
        HeaderKey.COMPACTED_BLOCK_TIMES: "3, 2,1",
        HeaderKey.IS_PARTIAL: "true",
        HeaderKey.BASE_FILE_INSTANT_TIME_OF_RECORD_POSITIONS: "7",
        **HEADER,
    }
    (one,) = blocks_of(encode_block(BlockType.AVRO_DATA, header, b""))
    assert one.instant_time == TIME
    assert one.schema_json == '"long"'
    assert one.compacted_times == ("3", "2", "1")
    assert one.is_partial
    assert one.record_positions_base == "7"
    assert pickle.loads(pickle.dumps(one)) == one


def test_a_missing_header_entry_raises_only_when_it_is_read() -> None:
    (one,) = blocks_of(encode_block(BlockType.AVRO_DATA, {}, b""))
    assert (one.compacted_times, one.is_partial, one.record_positions_base) == ((), False, None)
    for name in ("instant_time", "schema_json", "target_instant_time"):
        with pytest.raises(CorruptTableError, match="lacks") as caught:
            getattr(one, name)
        assert caught.value.fields["path"] == "p/x.log"


def test_unknown_header_entries_are_kept() -> None:
    data = encode_block(BlockType.AVRO_DATA, {**HEADER, 99: "new"}, b"c")
    (one,) = blocks_of(data)
    assert one.header == {**HEADER, 99: "new"}
    assert encode_block(one.block_type, one.header, b"c") == data


def test_an_empty_file_has_no_blocks() -> None:
    assert blocks_of(b"") == []


def test_only_headers_and_ends_are_read_before_the_content_is_requested() -> None:
    data = block(bytes(1_000_000)) + block(bytes(2_000_000))
    source = CountingSource(data)
    found = list(iter_blocks(source, len(data), path="x"))
    assert len(found) == 2
    assert len(source.reads) == 3  # start, end with the next start, end
    assert max(length for _, length in source.reads) <= 65_536
    assert read_content(source, found[1]) == bytes(2_000_000)
    assert source.reads[3:] == [(found[1].content_offset, 2_000_000)]


def test_small_blocks_share_one_read() -> None:
    data = block() * 100
    source = CountingSource(data)
    assert len(list(iter_blocks(source, len(data), path="x"))) == 100
    assert source.reads == [(0, len(data))]


def test_a_header_longer_than_one_read_is_whole() -> None:
    schema = "".join(chr(97 + i % 26) for i in range(300_000))
    data = block() + encode_block(BlockType.DELETE, {HeaderKey.SCHEMA: schema}, b"c") + block()
    source = CountingSource(data)
    found = list(iter_blocks(source, len(data), path="x"))
    assert [one.schema_json for one in found] == ['"long"', schema, '"long"']
    assert max(length for _, length in source.reads) <= 65_536


class TestTornBlocks:
    """A crash tears a block before its write commits (fmt 5.2)."""

    def test_every_truncation_of_the_last_block_keeps_the_ones_before(self) -> None:
        good = block(b"first") + block(b"second")
        torn = block(b"third")
        for cut in range(1, len(torn)):
            assert shape_of(good + torn[:cut]) == [
                ("AVRO_DATA", 0, len(block(b"first"))),
                ("AVRO_DATA", len(block(b"first")), len(good)),
                ("CORRUPT", len(good), len(good) + cut),
            ], cut

    def test_every_truncation_of_the_only_block_leaves_a_damaged_region(self) -> None:
        torn = block()
        for cut in range(1, len(torn)):
            assert shape_of(torn[:cut]) == [("CORRUPT", 0, cut)], cut

    def test_a_block_appended_behind_a_torn_one_is_found(self) -> None:
        torn, good = block(b"torn"), block(b"good")
        for cut in range(6, len(torn)):
            data = torn[:cut] + good + good
            assert shape_of(data) == [
                ("CORRUPT", 0, cut),
                ("AVRO_DATA", cut, cut + len(good)),
                ("AVRO_DATA", cut + len(good), len(data)),
            ], cut

    @pytest.mark.parametrize("size", [-1, -(2**63), 0, 35, 2**31, 2**62, 2**63 - 1])
    def test_an_impossible_size_is_damage(self, size: int) -> None:
        good = block()
        data = with_long(block(), 6, size) + good
        assert shape_of(data) == [
            ("CORRUPT", 0, len(good)),
            ("AVRO_DATA", len(good), len(data)),
        ]

    @pytest.mark.parametrize("change", [-1, 1, 6, -6])
    def test_a_wrong_reverse_pointer_is_damage(self, change: int) -> None:
        good = block()
        data = with_long(good, len(good) - 8, len(good) - 8 + change) + good
        assert shape_of(data)[0] == ("CORRUPT", 0, len(good))

    def test_a_block_followed_by_neither_end_nor_magic_is_damage(self) -> None:
        good = block()
        assert shape_of(good + b"garbage" + good) == [
            ("CORRUPT", 0, len(good) + 7),
            ("AVRO_DATA", len(good) + 7, 2 * len(good) + 7),
        ]

    def test_fewer_bytes_than_a_magic_are_the_end_of_the_file_as_to_java(self) -> None:
        good = block()
        assert shape_of(good + b"?????") == [
            ("AVRO_DATA", 0, len(good)),
            ("CORRUPT", len(good), len(good) + 5),
        ]

    def test_the_next_block_is_found_at_every_distance_from_a_read_s_end(self) -> None:
        good = block()
        for distance in range(65_536 - 8, 65_536 + 8):
            torn = MAGIC + b"\x7f" * (distance - 6)
            data = torn + good
            assert shape_of(data) == [
                ("CORRUPT", 0, distance),
                ("AVRO_DATA", distance, len(data)),
            ], distance

    def test_magics_inside_a_damaged_region_make_one_region(self) -> None:
        good = block()
        torn = (MAGIC + b"text") * 50_000
        source = CountingSource(torn + good)
        found = list(iter_blocks(source, len(torn) + len(good), path="x"))
        assert [(one.block_type, one.content_offset, one.content_length) for one in found] == [
            (BlockType.CORRUPT, 0, len(torn)),
            (BlockType.AVRO_DATA, found[1].content_offset, 7),
        ]
        assert len(source.reads) < 2 + 2 * len(torn) // 65_536

    def test_magics_inside_a_good_content_are_content(self) -> None:
        data = block(MAGIC * 3 + block()) + block()
        assert [name for name, _, _ in shape_of(data)] == ["AVRO_DATA", "AVRO_DATA"]

    def test_a_file_made_of_blocks_with_false_ends_is_refused_before_it_costs_much(self) -> None:
        frame = MAGIC + struct.pack(">q", 100_000)
        source = CountingSource(frame * 40_000)
        with pytest.raises(CorruptTableError, match="too many broken blocks"):
            list(iter_blocks(source, len(source.data), path="x"))
        assert len(source.reads) < 1_000


class TestRot:
    """A block with a whole frame was written in full, so its rows must not be lost silently."""

    def test_a_file_that_does_not_begin_with_a_block_is_an_error_as_to_java(self) -> None:
        with pytest.raises(CorruptTableError, match="does not begin with a block") as caught:
            blocks_of(b"PAR1" + block())
        assert caught.value.fields == {"path": "p/x.log", "offset": 0}

    @pytest.mark.parametrize("count", [-1, 3, 1025, 2**31 - 1, -(2**31)])
    def test_a_wrong_count_of_header_entries_is_an_error(self, count: int) -> None:
        with pytest.raises(CorruptTableError):
            blocks_of(with_int(block(), 22, count))

    def test_a_header_of_a_thousand_entries_is_read_and_a_longer_one_is_an_error(self) -> None:
        header = {100 + n: "x" for n in range(1024)}
        (one,) = blocks_of(encode_block(BlockType.DELETE, header, b""))
        assert one.header == header
        with pytest.raises(CorruptTableError, match="claims 1025 entries"):
            blocks_of(encode_block(BlockType.DELETE, {**header, 99: "x"}, b""))

    @pytest.mark.parametrize("length", [-1, 16, 2**31 - 1, -(2**31)])
    def test_a_wrong_length_of_a_header_entry_is_an_error(self, length: int) -> None:
        with pytest.raises((CorruptTableError, UnsupportedTableError)):
            blocks_of(with_int(block(), 30, length))

    @pytest.mark.parametrize("length", [-1, 0, 6, 8, 2**31, 2**63 - 1, -(2**63)])
    def test_a_wrong_content_length_is_an_error(self, length: int) -> None:
        data = block()
        with pytest.raises(CorruptTableError):
            blocks_of(with_long(data, len(data) - 8 - 4 - 7 - 8, length))

    def test_a_header_that_is_no_text_is_an_error(self) -> None:
        with pytest.raises(CorruptTableError, match="not text"):
            blocks_of(block().replace(TIME.encode(), b"\xff" * 17))

    def test_a_footer_with_entries_is_passed_over(self) -> None:
        data = block()
        footer = struct.pack(">iii", 1, 0, 3) + b"end"
        size = len(data) - 14 + len(footer) - 4
        changed = data[:6] + struct.pack(">q", size) + data[14:-12] + footer
        changed += struct.pack(">q", size + 6)
        assert [one.content_length for one in blocks_of(changed + data)] == [7, 7]

    def test_a_file_shorter_than_listed_is_an_error(self) -> None:
        data = block() + block()
        with pytest.raises(CorruptTableError, match="shorter"):
            list(iter_blocks(BytesSource(data[:-1]), len(data), path="x"))
        (one, _) = blocks_of(data)
        with pytest.raises(CorruptTableError, match="ends inside"):
            read_content(BytesSource(data[: one.content_offset + 3]), one)


class TestUnknown:
    """A block of a later release is refused by name, not skipped."""

    @pytest.mark.parametrize("version", [0, 2, -1])
    def test_other_log_format_versions(self, version: int) -> None:
        with pytest.raises(UnsupportedTableError, match=f"format version {version}:") as caught:
            blocks_of(with_int(block(), 14, version))
        assert caught.value.kind == "log_format_version"
        assert caught.value.fields["path"] == "p/x.log"

    @pytest.mark.parametrize("ordinal", [7, -1, 2**31 - 1])
    def test_other_block_types(self, ordinal: int) -> None:
        with pytest.raises(UnsupportedTableError, match=f"block type {ordinal}:") as caught:
            blocks_of(with_int(block(), 18, ordinal))
        assert caught.value.kind == "log_block_type"

    @pytest.mark.parametrize("header", [{}, {HeaderKey.COMMAND_BLOCK_TYPE: "1"}])
    def test_other_commands(self, header: dict[int, str]) -> None:
        with pytest.raises(UnsupportedTableError) as caught:
            blocks_of(encode_block(BlockType.COMMAND, header, b""))
        assert caught.value.kind == "log_command"


def test_a_rollback_block_names_its_target() -> None:
    header = {
        HeaderKey.INSTANT_TIME: "20261121102318499",
        HeaderKey.TARGET_INSTANT_TIME: "20261121102315779",
        HeaderKey.COMMAND_BLOCK_TYPE: "0",
    }
    (one,) = blocks_of(encode_block(BlockType.COMMAND, header, b""))
    assert one.block_type is BlockType.COMMAND
    assert one.target_instant_time == "20261121102315779"


def test_a_block_that_java_cannot_read_is_not_written() -> None:
    with pytest.raises(InvalidInputError):
        encode_block(BlockType.CORRUPT, HEADER, b"")
    with pytest.raises(InvalidInputError, match="2 GiB"):
        block_frame(BlockType.AVRO_DATA, HEADER, 2**31 - 1)
    with pytest.raises(InvalidInputError, match="Unicode"):
        encode_block(BlockType.DELETE, {HeaderKey.INSTANT_TIME: "\ud800"}, b"")


# ---------------------------------------------------------------- Java's files


def log_files(name: str, folder: Path) -> list[Path]:
    """Return the log files of a golden table, oldest first, with those of the metadata table."""
    found = [
        file
        for file in golden_tables.unpack(name, folder).rglob(".*.log.*")
        if not file.name.endswith(".crc") and ".temp" not in file.parts
    ]
    return sorted(found, key=lambda file: file.name.split("_")[1:])


@pytest.mark.parametrize("name", golden_tables.names())
def test_every_block_of_java_is_found_and_written_again_byte_for_byte(
    tmp_path: Path, name: str
) -> None:
    for file in log_files(name, tmp_path):
        data = file.read_bytes()
        found = blocks_of(data)
        assert BlockType.CORRUPT not in {one.block_type for one in found}
        source = BytesSource(data)
        again = [
            encode_block(one.block_type, one.header, read_content(source, one)) for one in found
        ]
        assert b"".join(again) == data, file.name


def listed(name: str, folder: Path) -> list[list[tuple[str, str, int]]]:
    """Return type, instant and content bytes of the blocks of each log file of the table itself."""
    return [
        [
            (one.block_type.name, one.instant_time, one.content_length)
            for one in blocks_of(f.read_bytes())
        ]
        for f in log_files(name, folder)
        if ".hoodie" not in f.parts
    ]


def test_updates_and_deletes_of_version_8(tmp_path: Path) -> None:
    assert listed("v8_mor_logs", tmp_path) == [
        [("AVRO_DATA", "20261121100812776", 137)],
        [("AVRO_DATA", "20261121100812776", 137)],
        [("AVRO_DATA", "20261121100822232", 266)],
        [("DELETE", "20261121100824283", 28)],
    ]


def test_one_log_file_contains_two_blocks_of_one_write(tmp_path: Path) -> None:
    assert listed("v8_deletes_ordering", tmp_path) == [
        [("AVRO_DATA", "20261121101051345", 126), ("DELETE", "20261121101051345", 34)],
        [("DELETE", "20261121101052501", 24)],
        [("AVRO_DATA", "20261121101053239", 361)],
    ]


def test_log_files_of_version_6_name_the_base_and_their_blocks_the_writer(tmp_path: Path) -> None:
    assert listed("v6_mor_logs", tmp_path) == [
        [("AVRO_DATA", "20261121102313024", 137)],
        [("AVRO_DATA", "20261121102313024", 137)],
        [("AVRO_DATA", "20261121102315779", 266)],
        [("DELETE", "20261121102318499", 28)],
    ]


def test_change_log_blocks_have_a_type_of_their_own(tmp_path: Path) -> None:
    assert listed("v9_cdc_mor", tmp_path) == [
        [("CDC_DATA", "20261121101652337", 30)],
        [("CDC_DATA", "20261121101653290", 8)],
        [("DELETE", "20261121101653861", 19)],
    ]


def test_a_compacted_block_lists_the_blocks_that_it_replaces(tmp_path: Path) -> None:
    compacted = [
        blocks_of(file.read_bytes())[0].compacted_times
        for file in log_files("v8_log_compaction", tmp_path)
    ]
    assert compacted == [
        (),
        (),
        (),
        ("20261121101853838", "20261121101852911", "20261121101852151"),
        (),
    ]


def test_partial_updates_are_marked_with_the_base_of_their_positions(tmp_path: Path) -> None:
    first = blocks_of(log_files("v8_partial_update", tmp_path)[0].read_bytes())[0]
    assert first.is_partial
    assert first.record_positions_base == "20261121101820500"
    other = blocks_of(log_files("v8_mor_logs", tmp_path)[0].read_bytes())[0]
    assert not other.is_partial
