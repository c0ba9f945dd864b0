"""Bloom filters have the bytes Java Hudi writes (fmt 4.5)."""

from __future__ import annotations

import hashlib
import io
import math
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from filegroups.files.bloom import DYNAMIC, SIMPLE, BloomFilter, BloomSettings
from timeline.errors import CorruptTableError, InvalidInputError

GOLDEN = Path(__file__).parents[3] / "interop" / "golden"


def filter_of(keys: list[str], **sizes: object) -> BloomFilter:
    made = BloomFilter(BloomSettings(**sizes))
    made.add(pa.array(keys))
    return made


def test_hudis_default_size_is_431_kilobytes_of_text():
    settings = BloomSettings()
    assert (settings.vector_bits, settings.hash_count) == (2_587_966, 30)


@pytest.mark.parametrize("table", ["v9_cow_part", "v9_all_types", "v8_complex_key", "v6_cow_nonpart"])  # fmt: skip
def test_filters_of_real_files_are_rebuilt_byte_for_byte(table):
    with zipfile.ZipFile(GOLDEN / f"{table}.zip") as archive:
        files = [archive.read(name) for name in archive.namelist() if name.endswith(".parquet")]
    checked = 0
    for data in files:
        file = pq.ParquetFile(io.BytesIO(data))
        texts = file.metadata.metadata or {}
        if b"org.apache.hudi.bloomfilter" not in texts:
            continue
        keys = file.read(["_hoodie_record_key"]).column(0)
        expected = texts[b"org.apache.hudi.bloomfilter"].decode()
        kind = texts[b"hoodie_bloom_filter_type_code"].decode()
        assert BloomFilter.load(expected, kind).to_base64() == expected
        rebuilt = BloomFilter(BloomSettings(kind=kind, entries=200))  # as in Java's tables
        rebuilt.add(keys)
        assert rebuilt.to_base64() == expected
        checked += 1
    assert checked


def test_several_rows_and_keys_beyond_ascii_keep_their_known_bytes():
    # The digest was compared with a filter that Hadoop's class reads.
    keys = ["é" * (i % 5) + f"k{i}" + "\U0001f600" * (i % 3) for i in range(180)]
    made = BloomFilter(BloomSettings(entries=100, error_rate=1e-6, entries_max=1000))
    made.add(pa.chunked_array([keys[:33], keys[33:]]))
    assert hashlib.sha256(made.to_base64().encode()).hexdigest() == (
        "440783377e833bfc605047aa9c6054d5271bccb24ddc2d5c2d0bcfa9343ecfe1"
    )


def test_a_small_filter_has_this_text():
    expected = "/////wAAAAcBAAAAFAAAAAIAAAABAAAAAv////8AAAAHAQAAABQscQj/////AAAABwEAAAAUCokM"
    assert filter_of(["a", "bé", "ccc"], entries=2, error_rate=1e-2).to_base64() == expected


def test_a_full_filter_reuses_its_rows_one_after_another():
    expected = "/////wAAAAQBAAAACgAAAAIAAAAGAAAAAv////8AAAAEAQAAAAr9A/////8AAAAEAQAAAAr+AQ=="
    sizes = {"entries": 2, "error_rate": 0.1, "entries_max": 3}
    assert filter_of(list("abcdefgh"), **sizes).to_base64() == expected
    piecewise = filter_of(list("abcde"), **sizes)
    piecewise.add(pa.array(["f"]))
    piecewise.add(pa.array(["g", "h"]))
    assert piecewise.to_base64() == expected


@pytest.mark.parametrize("kind", [DYNAMIC, SIMPLE])
def test_keys_put_in_are_found_and_others_are_not(kind):
    keys = [f"key{i}" for i in range(500)]
    made = filter_of(keys, kind=kind, entries=300)
    again = BloomFilter.load(made.to_base64(), kind)
    assert again.may_contain(pa.array(keys)).all()
    assert not again.may_contain(pa.array([f"other{i}" for i in range(500)])).any()
    assert again.to_base64() == made.to_base64()


def test_a_loaded_filter_grows_like_the_original():
    sizes = {"entries": 10, "entries_max": 100}
    whole = filter_of([str(i) for i in range(1, 35)], **sizes)
    part = filter_of([str(i) for i in range(1, 17)], **sizes)
    again = BloomFilter.load(part.to_base64(), DYNAMIC, BloomSettings(**sizes))
    again.add(pa.array([str(i) for i in range(17, 35)]))
    assert again.to_base64() == whole.to_base64()


def test_a_slice_of_an_array_adds_only_its_own_keys():
    sliced = BloomFilter(BloomSettings(entries=2, error_rate=1e-2))
    sliced.add(pa.array(["zz", "a", "bé", "ccc", "yyy"]).slice(1, 3))
    same = filter_of(["a", "bé", "ccc"], entries=2, error_rate=1e-2)
    assert sliced.to_base64() == same.to_base64()


@pytest.mark.parametrize("keys", [["a", ""], ["a", None]])
def test_empty_and_null_keys_are_refused(keys):
    with pytest.raises(InvalidInputError):
        filter_of(keys)


@pytest.mark.parametrize("text", ["", "not base64", "AAAA", "AAAAAQ==", "/////wAAAAcBf////wAAAAIAAAABAAAAAg=="])  # fmt: skip
def test_damaged_filters_are_refused(text):
    with pytest.raises(CorruptTableError) as caught:
        BloomFilter.load(text, DYNAMIC)
    assert caught.value.kind == "bad_bloom_filter"


@pytest.mark.parametrize(
    ("keys", "entries", "hashes", "bits"),
    [
        (0, 256, 10, 19_027),
        (256, 256, 10, 19_027),
        (257, 512, 10, 38_053),
        (2_048, 2_048, 10, 152_209),
        (2_049, 4_096, 16, 204_808),
        (50_000, 60_000, 16, 3_000_117),
        (90_000, 60_000, 16, 3_000_117),
    ],
)
def test_a_dynamic_filter_fits_its_file_up_to_the_configured_size(keys, entries, hashes, bits):
    fitted = BloomSettings().fitted(keys)
    assert (fitted.entries, fitted.hash_count, fitted.vector_bits) == (entries, hashes, bits)


def test_a_filter_of_few_rounds_errs_as_rarely():
    """The rate is (1 - e^(-kn/m))^k, with k rounds over m bits for n keys."""
    for settings in (BloomSettings(), *map(BloomSettings().fitted, (256, 60_000))):
        filled = 1 - math.exp(-settings.hash_count * settings.entries / settings.vector_bits)
        assert filled**settings.hash_count == pytest.approx(1e-9, rel=0.02)


def test_a_filter_that_may_err_often_has_no_more_rounds_than_in_hudi():
    settings = BloomSettings(error_rate=0.01)
    assert (settings.hash_count, settings.fitted(256).hash_count) == (7, 7)
    assert settings.fitted(60_000).hash_count == 7


@pytest.mark.parametrize("keys", [["abcd"], ["abcd", "efgh"], ["abcdefgh"], ["abcdefghi"]])
def test_keys_of_whole_words_are_not_padded(keys):
    """Their bytes are read in Arrow's buffers."""
    column = pa.array(keys)
    made = BloomFilter(BloomSettings())
    made.add(column)
    assert made.may_contain(column).all()
    assert column.to_pylist() == keys


def test_a_simple_filter_keeps_its_size_because_its_file_does_not_contain_it():
    settings = BloomSettings(kind=SIMPLE)
    assert settings.fitted(10) is settings


def test_a_fitted_filter_has_every_key_and_few_others():
    keys = pa.array([f"key-{number}" for number in range(3_000)])
    fitted = BloomFilter(BloomSettings().fitted(len(keys)))
    fitted.add(keys)
    read = BloomFilter.load(fitted.to_base64(), DYNAMIC)
    assert read.entries == 4_096
    assert read.may_contain(keys).all()
    others = pa.array([f"other-{number}" for number in range(20_000)])
    assert not read.may_contain(others).any()


@pytest.mark.parametrize("length", [1, 4, 7, 8, 12])
@pytest.mark.parametrize("count", [1, 2, 10])
def test_keys_are_not_changed_by_being_hashed(length: int, count: int) -> None:
    """Neither the caller's bytes nor read-only bytes of other processes change."""
    texts = [str(number).rjust(length, "k") for number in range(count)]
    keys = pa.array(texts)
    _, ends, data = keys.buffers()
    sent = pa.Array.from_buffers(pa.string(), count, [None, ends, pa.py_buffer(data.to_pybytes())])
    for column in (keys, sent):
        held = BloomFilter(BloomSettings(entries=4000))
        held.add(column)
        assert held.may_contain(column).all()
        assert column.to_pylist() == texts
