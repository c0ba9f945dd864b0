"""Small Parquet files are decoded once, like ``pq.ParquetFile``; large ones never."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from filegroups.files.parquet import InMemoryParquet, open_parquet

ROWS = pa.table({"key": ["a", "b", "c"], "n": [1, None, 3], "part": ["p", "p", "q"]})


def parquet(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink)
    return sink.getvalue().to_pybytes()


def test_a_small_file_answers_as_the_parquet_file_does() -> None:
    data = parquet(ROWS)
    small, plain = open_parquet(pa.BufferReader(data)), pq.ParquetFile(pa.BufferReader(data))
    assert isinstance(small, InMemoryParquet)
    assert small.schema_arrow.equals(plain.schema_arrow, check_metadata=True)
    assert small.metadata.equals(plain.metadata)
    for columns in (None, ["n", "key"], []):
        assert small.read(columns).equals(plain.read(columns))
        assert small.read(columns).num_rows == 3
        assert list(small.iter_batches(2, columns)) == list(plain.iter_batches(2, columns=columns))


def test_equal_bytes_are_decoded_once_and_others_by_themselves() -> None:
    data = parquet(ROWS)
    first = open_parquet(pa.BufferReader(data))
    assert open_parquet(pa.BufferReader(bytes(bytearray(data)))) is first
    other = open_parquet(pa.BufferReader(parquet(ROWS.slice(1))))
    assert other.read().column("key").to_pylist() == ["b", "c"]


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(pa.table({"n": [7] * 1_001}), id="many rows"),
        pytest.param(pa.table({"text": ["x" * 1_000] * 100}), id="much text in few bytes"),
        pytest.param(pa.table({"n": list(range(5_000))}), id="many bytes"),
    ],
)
def test_a_file_that_takes_much_memory_is_not_cached(rows: pa.Table) -> None:
    opened = open_parquet(pa.BufferReader(parquet(rows)))
    assert isinstance(opened, pq.ParquetFile)
    assert opened.read().equals(rows)


def test_damaged_rows_raise_when_they_are_read() -> None:
    data = bytearray(parquet(ROWS))
    footer = int.from_bytes(data[-8:-4], "little") + 8
    data[4 : len(data) - footer] = bytes(len(data) - footer - 4)
    for _ in range(2):
        opened = open_parquet(pa.BufferReader(bytes(data)))
        assert opened.metadata.num_rows == 3
        with pytest.raises((pa.ArrowException, OSError)):
            opened.read()


def test_a_damaged_footer_is_refused_each_time() -> None:
    data = parquet(ROWS)[:-9] + b"PAR1"
    for _ in range(2):
        with pytest.raises((pa.ArrowException, OSError)):
            open_parquet(pa.BufferReader(data))
