"""A key has the bucket that Java Hudi computes, bit for bit (fmt 9)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from filegroups.keys.bucketing import (
    ConsistentHashAssigner,
    SimpleBucketAssigner,
    bucket_file_id,
    bucket_hashes,
    bucket_of,
    fixed_file_id,
    java_hashes,
    ring_hashes,
    xx_hashes,
)
from tests.interop import golden_tables
from timeline.properties.setting_enums import BucketEngine


def bucket(key: str, *fields: str, buckets: int = 256) -> int:
    shares = SimpleBucketAssigner(hash_fields=fields, buckets=buckets)
    return int(shares.numbers(pa.array([key]), pa.array(["p"]))[0])


def values(key: str, *fields: str) -> int:
    return int(bucket_hashes(pa.array([key]), fields)[0])


@pytest.mark.parametrize(
    ("key", "signed", "number"),
    [
        ("id1", 104085, 149),
        ("id:id1,name:x", 3226755, 131),
        ("uuid-334e26e9-8355", -733213332, 108),
        ("a:é漢\U0001f600,b:__null__,c:__empty__", 288811995, 219),
    ],
)
def test_hashes_and_buckets_are_those_java_was_measured_to_give(
    key: str, signed: int, number: int
) -> None:
    fields = ("id", "name", "a", "b", "c")
    found = bucket_hashes(pa.array([key]), fields)
    assert (int(found.view(np.int32)[0]) & 0x7FFFFFFF) == signed & 0x7FFFFFFF
    assert bucket(key, *fields) == number


def test_the_sign_of_a_hash_is_dropped_before_the_remainder() -> None:
    assert bucket("uuid-334e26e9-8355", "id", buckets=97) == 34  # 1414270316, not 3561753964


def test_text_hashes_count_utf_16_code_units() -> None:
    texts = pa.array(["", "a", "ab", "é", "漢", "\U0001f600", "a\x00b"])
    # the last but one is the surrogate pair d83d de00: 55357 * 31 + 56832
    expected = [0, 97, 31 * 97 + 98, 233, 28450, 1772899, 97 * 961 + 98]
    assert java_hashes(texts).tolist() == expected
    assert java_hashes(texts.slice(4, 2)).tolist() == expected[4:6]


def test_text_hashes_of_many_texts_are_those_of_each() -> None:
    texts = [f"{number}é" * (number % 5) for number in range(70_000)]
    found = java_hashes(pa.array(texts))
    for number in (0, 1, 65_535, 65_536, 69_999):
        assert found[number] == java_hashes(pa.array([texts[number]]))[0]


def test_xx_hashes_equal_the_reference_values() -> None:
    texts = pa.array(["", "abc", "Nobody inspects the spammish repetition"])
    assert xx_hashes(texts).tolist() == [0x02CC5D05, 0x32D153FF, 0xE2293B2F]
    assert xx_hashes(texts.slice(1, 1)).tolist() == [0x32D153FF]


@pytest.mark.parametrize(
    ("length", "xx_hash"),
    [
        (1, 0x73C5E60B),
        (3, 0x08E99F85),
        (4, 0xBE141284),
        (5, 0x3A2C3C9A),
        (8, 0x68BD7C8C),
        (15, 0x9759CD1A),
        (16, 0xFD55F482),
        (17, 0xBD3EE43F),
        (19, 0x702BFAC3),
        (20, 0x629F7926),
        (31, 0xAF20FC01),
        (32, 0x81524BFE),
        (33, 0x01954F57),
        (36, 0xA8CA276E),
        (56, 0x7CF6C28F),
    ],
)
def test_xx_hashes_of_every_shape_of_length_are_those_of_the_library(
    length: int, xx_hash: int
) -> None:
    # whole lanes of 16 bytes, words of 4, and single bytes
    text = "Nobody inspects the spammish repetition, é漢\U0001f600 twice".encode()[:length].decode()
    assert xx_hashes(pa.array([text, "abc", text])).tolist() == [xx_hash, 0x32D153FF, xx_hash]


def test_xx_hashes_of_many_texts_of_one_length_are_those_of_each() -> None:
    found = xx_hashes(pa.array(["abc"] * 65_537 + ["", "a"]))
    assert found[[0, 65_535, 65_536, 65_537]].tolist() == [0x32D153FF] * 3 + [0x02CC5D05]
    assert len(xx_hashes(pa.array([], pa.string()))) == 0


@pytest.mark.parametrize(
    ("key", "same_as"),
    [
        ("id:a", "id:a"),  # a single field is hashed whole
        ("a:b", "a:b"),
        ("x,y", "x,y"),
        ("id:a,b", None),  # a piece without a colon belongs to the value before it
        ("id:a:c,other:b", None),  # the value continues after its first colon
        ("other:b,more:c", "other:b,more:c"),  # without a hash field: whole
        ("a,id:c", "a,id:c"),  # the first name ends at the first colon
    ],
)
def test_hash_fields_are_extracted_from_the_key_as_by_java(key: str, same_as: str | None) -> None:
    if same_as is not None:
        whole = int(java_hashes(pa.array([same_as]))[0])
    else:
        whole = int(java_hashes(pa.array([{"id:a,b": "a,b"}.get(key, "a:c")]))[0])
    assert values(key, "id") == (31 + whole) % 2**32


def test_values_count_in_the_key_s_order_not_the_option_s() -> None:
    a, b = (int(one) for one in java_hashes(pa.array(["a,x", "b"])))
    expected = ((31 + a) * 31 + b) % 2**32
    assert values("id:a,x,skipped:s,name:b", "name", "id") == expected


def test_nulls_and_empty_texts_hash_to_nothing_in_keys_of_several_fields_only() -> None:
    assert values("id:__null__,name:__empty__", "id", "name") == 31 * 31
    assert values("__null__", "id") != 31


def test_keys_of_both_shapes_in_one_column_keep_their_places() -> None:
    keys = ["id1", "id:id1,name:x", "uuid-334e26e9-8355"]
    shares = SimpleBucketAssigner(hash_fields=("id", "name"), buckets=256)
    chunked = pa.chunked_array([keys[:1], keys[1:]])
    assert shares.numbers(chunked, pa.array(["p"] * 3)).tolist() == [149, 131, 108]
    assert len(shares.numbers(pa.array([], pa.string()), pa.array([], pa.string()))) == 0


def test_keys_of_other_text_types_hash_alike() -> None:
    keys = pa.array(["id1", "uuid-334e26e9-8355"])
    for other in (keys.dictionary_encode(), keys.cast(pa.large_string())):
        assert bucket_hashes(other, ("id",)).tolist() == bucket_hashes(keys, ("id",)).tolist()
        assert ring_hashes(other, ("id",)).tolist() == ring_hashes(keys, ("id",)).tolist()
    assert bucket_hashes(keys.dictionary_encode(), ("id",)).view(np.int32).tolist()[0] == 104085


def test_bucket_engines_are_spelled_as_in_hudi() -> None:
    assert BucketEngine("SIMPLE") is BucketEngine.SIMPLE
    assert BucketEngine("CONSISTENT_HASHING") is BucketEngine.CONSISTENT_HASHING


def test_file_ids_carry_their_bucket() -> None:
    made = bucket_file_id(3, "a1b2c3d4-4059-494c-88db-1b3bfb6ab2ed")
    assert made == "00000003-4059-494c-88db-1b3bfb6ab2ed-0"
    assert fixed_file_id(3) == "00000003-0000-0000-0000-000000000000-0"
    assert (bucket_of(made), bucket_of(fixed_file_id(3))) == (3, 3)
    assert bucket_of("ec173582-43ff-468d-ac41-fa3f4e80f6df-0") is None


def test_a_ring_takes_the_first_range_that_ends_at_or_above_the_hash() -> None:
    keys = pa.array(["abc"])  # 0x32d153ff
    for ends, number in (
        ((0x32D153FE, 0x7FFFFFFF), 1),
        ((0x32D153FF, 0x7FFFFFFF), 0),
        ((1, 2), 0),  # above the last range: the first one's
    ):
        shares = ConsistentHashAssigner(hash_fields=("id",), rings={"p": ends})
        assert shares.numbers(keys, pa.array(["p"])).tolist() == [number]


def test_ring_hashes_join_the_values() -> None:
    found = ring_hashes(pa.array(["id:a,name:bc", "abc", "id:__null__,name:x"]), ("id", "name"))
    assert found[:2].tolist() == [0x32D153FF, 0x32D153FF]
    assert found[2] == xx_hashes(pa.array(["nullx"]))[0]
    emptied = ring_hashes(pa.array(["id:__empty__,name:abc", "__empty__"]), ("id", "name"))
    assert emptied.tolist() == [0x32D153FF, int(xx_hashes(pa.array(["__empty__"]))[0])]


def test_rows_of_the_golden_bucket_table_are_in_the_buckets_of_their_hashes() -> None:
    rows = golden_tables.account("v9_simple_bucket")["snapshot"]
    assert len(rows) == 8
    for row in rows:
        expected = bucket_of(row["_hoodie_file_name"])
        assert bucket(row["_hoodie_record_key"], "id", buckets=4) == expected


def test_rows_of_the_golden_ring_are_in_the_buckets_of_their_hashes() -> None:
    rows = golden_tables.account("v9_consistent_bucket")["snapshot"]
    files = [
        "03252bf5-8ddd-3ae6-9a3c-a6610cddd119-0",
        "d9cd4766-b6bd-3b6e-8f5c-4d1f4a482ceb-0",
    ]
    shares = ConsistentHashAssigner(
        hash_fields=("id",), rings={"region=us": (1073741824, 2147483647)}
    )
    keys = pa.array([row["_hoodie_record_key"] for row in rows])
    paths = pa.array([row["_hoodie_partition_path"] for row in rows])
    found = [files[number] for number in shares.numbers(keys, paths)]
    assert found == [row["_hoodie_file_name"] for row in rows]
