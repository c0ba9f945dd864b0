"""The valid blocks of a slice, in Java's order (fmt 5.7)."""

from __future__ import annotations

from filegroups.files.log_files import VisibleInstants, select_blocks
from timeline.codecs.log_blocks import BlockType, HeaderKey, LogBlock


def block(time: str, kind: BlockType = BlockType.AVRO_DATA, **more: str) -> LogBlock:
    header = {HeaderKey.INSTANT_TIME: time}
    header |= {HeaderKey[name.upper()]: text for name, text in more.items()}
    return LogBlock(block_type=kind, header=header, content_offset=0, content_length=0, path=time)


def rollback(time: str, target: str) -> LogBlock:
    return block(time, BlockType.COMMAND, target_instant_time=target)


def compacted(time: str, *originals: str) -> LogBlock:
    return block(time, compacted_block_times=",".join(reversed(originals)))


EVERY = VisibleInstants(times=frozenset(), archived_below="t9")


def selected(*blocks: LogBlock, hidden: str = "") -> list[str]:
    shown = {f"t{number}" for number in range(10)} - set(hidden.split())
    found = select_blocks(blocks, shown)
    return [one.instant_time for one in found.blocks]


def test_blocks_keep_their_order():
    found = select_blocks(
        [block("t1"), block("t1", BlockType.DELETE), block("t2", BlockType.PARQUET_DATA)],
        EVERY,
    )
    assert [one.block_type.name for one in found.blocks] == ["AVRO_DATA", "DELETE", "PARQUET_DATA"]
    assert found.corrupt == ()


def test_blocks_of_invisible_instants_are_ignored():
    assert selected(block("t1"), block("t2"), block("t3"), hidden="t2") == ["t1", "t3"]


def test_a_rollback_removes_all_blocks_of_its_target_in_any_position():
    assert selected(block("t1"), block("t2"), rollback("t3", "t1"), block("t1")) == ["t2"]
    # A rollback of a missing block does nothing, even if its own instant is not visible.
    assert selected(block("t1"), rollback("t3", "t9"), hidden="t3") == ["t1"]
    assert selected(block("t1"), rollback("t3", "t1"), hidden="t3") == []


def test_corrupt_and_change_blocks_hold_no_rows():
    torn = LogBlock(block_type=BlockType.CORRUPT, content_offset=5, content_length=9, path="f")
    found = select_blocks(
        [block("t1"), torn, block("t2", BlockType.CDC_DATA), block("t3")],
        EVERY,
    )
    assert [one.instant_time for one in found.blocks] == ["t1", "t3"]
    assert found.corrupt == (torn,)


def test_a_log_compaction_replaces_its_source_blocks():
    assert selected(block("t1"), block("t2"), compacted("t3", "t1", "t2"), block("t4")) == [
        "t3",
        "t4",
    ]


def test_a_log_compaction_has_the_position_of_its_newest_source_block():
    # t3 was written while t4 compacted t1 and t2: it is newer than both.
    logs = [block("t1"), block("t2"), block("t3"), compacted("t4", "t1", "t2")]
    assert selected(*logs) == ["t4", "t3"]


def test_log_compactions_of_log_compactions():
    logs = [
        block("t1"),
        block("t2"),
        compacted("t3", "t1", "t2"),
        block("t4"),
        compacted("t5", "t3", "t4"),
        block("t6"),
    ]
    assert selected(*logs) == ["t5", "t6"]


def test_a_log_compaction_that_is_not_visible_replaces_nothing():
    logs = [block("t1"), block("t2"), compacted("t3", "t1", "t2")]
    assert selected(*logs, hidden="t3") == ["t1", "t2"]


def test_a_log_compaction_without_its_source_blocks_keeps_its_own_position():
    assert selected(block("t0"), compacted("t3", "t1", "t2"), block("t4")) == ["t0", "t3", "t4"]


def test_a_rolled_back_log_compaction_replaces_nothing():
    logs = [block("t1"), compacted("t2", "t1"), rollback("t3", "t2")]
    assert selected(*logs) == ["t1"]


def test_archived_instants_count_too():
    shown = VisibleInstants(times=frozenset({"t7"}), archived_below="t5")
    blocks = [block(time) for time in ("t4", "t5", "t6", "t7", "t8")]
    found = select_blocks(blocks, shown)
    assert [one.instant_time for one in found.blocks] == ["t4", "t7"]
