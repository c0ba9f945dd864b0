"""Keys and folders follow the table's column types, for rows of any type."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hoodoo
from filegroups.keys.generators import KeyGenerator
from filegroups.keys.keys import KeySpec, key_columns, partition_paths, record_keys
from filegroups.writing.workload import LocalWorkload
from filegroups.writing.write import prepare_write, write_prepared
from hoodoo.table import Table
from hoodoo.write_requests import write_request_of
from timeline.errors import InvalidInputError, SchemaConflictError, WriterDisagreementError
from timeline.model.commit_metadata import WriteOperation
from timeline.writer_registry import registered_writers

ZONED = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
WHEN = ZONED.replace(tzinfo=None)
DAY = dt.date(2024, 1, 1)

#: Type of the table's column -> the same value in other types that fit it, and its text.
ALIKE: dict[str, tuple[pa.DataType, list[tuple[Any, pa.DataType]], str]] = {
    "long": (
        pa.int64(),
        [(7, pa.int8()), (7, pa.uint32()), (7, pa.dictionary(pa.int8(), pa.int16()))],
        "7",
    ),
    "double": (
        pa.float64(),
        [(7.0, pa.float64()), (7, pa.int32()), (7, pa.int64()), (7.0, pa.float32())],
        "7.0",
    ),
    "float of a tenth": (pa.float64(), [(0.1, pa.float32()), (0.1, pa.float64())], "0.1"),
    "text": (
        pa.string(),
        [
            ("a", pa.large_string()),
            ("a", pa.string_view()),
            ("a", pa.dictionary(pa.int32(), pa.string())),
            (b"a", pa.binary()),
        ],
        "a",
    ),
    "text of numbers": (pa.string(), [("7", pa.string()), (7, pa.int64())], "7"),
    "decimal": (
        pa.decimal128(10, 2),
        [(Decimal("1.5"), pa.decimal128(5, 1)), (Decimal("1.50"), pa.decimal128(9, 2))],
        "1.50",
    ),
    "date": (pa.date32(), [(DAY, pa.date32()), (DAY, pa.date64())], "2024-01-01"),
    "moment": (
        pa.timestamp("us"),
        [(WHEN, pa.timestamp(unit)) for unit in ("s", "ms", "us", "ns")],
        "1704110400000000",
    ),
    "moment in a zone": (
        pa.timestamp("us", "UTC"),
        [(ZONED, pa.timestamp(unit, "Europe/Berlin")) for unit in ("s", "ms", "us", "ns")],
        "1704110400000000",
    ),
    "truth": (pa.bool_(), [(True, pa.bool_())], "true"),
}


def table_of(root: Path, kind: pa.DataType, **options: Any) -> Table:
    schema = pa.schema([("id", kind), ("v", pa.int64())])
    return hoodoo.create_table(root / "t", schema=schema, record_key=["id"], **options)


def rows(value: Any, kind: pa.DataType, v: int = 1) -> pa.Table:
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    column = pa.array([value], plain)
    return pa.table({"id": column if plain == kind else column.dictionary_encode(), "v": [v]})


@pytest.mark.parametrize("name", ALIKE)
def test_one_value_has_one_key_in_every_type_that_fits(name: str, tmp_path: Path) -> None:
    kind, forms, text = ALIKE[name]
    with table_of(tmp_path, kind) as table:
        for number, (value, form) in enumerate(forms):
            table.upsert(rows(value, form, number))
        stored = table.to_arrow(columns=["_hoodie_record_key", "v"])
        assert stored.to_pylist() == [{"_hoodie_record_key": text, "v": len(forms) - 1}]
        value, form = forms[-1]
        table.delete(rows(value, form).select(["id"]))
        assert table.to_arrow().num_rows == 0


def test_a_folder_is_named_by_the_type_of_the_table(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.string()), ("p", pa.float64()), ("v", pa.int64())])
    with hoodoo.create_table(
        tmp_path / "t", schema=schema, record_key=["id"], partition_by=["p"]
    ) as table:
        table.upsert(pa.table({"id": ["a"], "p": [1.0], "v": [1]}))
        again = pa.table({"id": ["a"], "p": [1], "v": [2]})
        table.upsert(again)
        stored = table.to_arrow(columns=["_hoodie_partition_path", "v"])
        assert stored.to_pylist() == [{"_hoodie_partition_path": "1.0", "v": 2}]
        table.insert_overwrite(again)
        assert table.to_arrow().num_rows == 1
        table.delete(again.select(["id", "p"]))
        assert table.to_arrow().num_rows == 0


def test_a_bucket_is_chosen_by_the_type_of_the_table(tmp_path: Path) -> None:
    options = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "16"}
    with table_of(tmp_path, pa.float64(), properties=options) as table:
        keys = list(range(50))
        table.upsert(pa.table({"id": [float(key) for key in keys], "v": keys}))
        table.upsert(pa.table({"id": keys, "v": keys}))
        assert table.to_arrow().num_rows == len(keys)


def test_a_field_inside_a_struct_is_keyed_by_its_own_type(tmp_path: Path) -> None:
    kind = pa.struct([("b", pa.float64()), ("c", pa.string())])
    schema = pa.schema([("a", kind), ("v", pa.int64())])
    with hoodoo.create_table(tmp_path / "t", schema=schema, record_key=["a.b"]) as table:
        table.upsert(pa.table({"a": pa.array([{"b": 7.0, "c": "x"}], kind), "v": [1]}))
        table.upsert([{"a": {"b": 7, "c": "y"}, "v": 2}])
        assert table.to_arrow(columns=["a", "v"]).to_pylist() == [
            {"a": {"b": 7.0, "c": "y"}, "v": 2}
        ]
        table.delete([{"a": {"b": 7}}])
        assert table.to_arrow().num_rows == 0


@pytest.mark.parametrize(
    ("kind", "value", "wider"),
    [
        (pa.int32(), 7.0, pa.float64()),
        (pa.int64(), 7.0, pa.float32()),
        (pa.decimal128(5, 1), Decimal("1.50"), pa.decimal128(6, 2)),
    ],
)
@pytest.mark.parametrize("place", ["key", "partition"])
def test_a_type_that_changes_stored_texts_is_refused_by_name(
    kind: pa.DataType, value: Any, wider: pa.DataType, place: str, tmp_path: Path
) -> None:
    schema = pa.schema([("id", kind), ("n", pa.int64())])
    options: dict[str, Any] = {"record_key": ["id"]}
    if place == "partition":
        options = {"record_key": ["n"], "partition_by": ["id"]}
    received_rows = pa.table({"id": pa.array([value], wider), "n": [1]})
    with hoodoo.create_table(tmp_path / "t", schema=schema, **options) as table:
        table.upsert(pa.table({"id": pa.array([1], kind), "n": [1]}))
        for write in (table.upsert, table.insert, table.delete, table.insert_overwrite):
            with pytest.raises(InvalidInputError, match="'id'") as refusal:
                write(received_rows)
            assert refusal.value.kind == "schema_mismatch"
        with pytest.raises(InvalidInputError, match="'id'"):
            table.check_conflicts(received_rows, "upsert")
        assert table.schema.field("id").type == kind


def test_longer_integers_widen_a_key_column_and_keep_its_texts(tmp_path: Path) -> None:
    with table_of(tmp_path, pa.int32()) as table:
        table.upsert(rows(7, pa.int32()))
        table.delete(rows(7, pa.int64()).select(["id"]))
        table.upsert(rows(7, pa.int32()))
        table.upsert(rows(7, pa.int64(), 2))
        stored = table.to_arrow(columns=["_hoodie_record_key", "v"])
        assert stored.to_pylist() == [{"_hoodie_record_key": "7", "v": 2}]
        assert table.schema.field("id").type == pa.int64()


def test_a_number_column_that_became_text_keeps_its_keys(tmp_path: Path) -> None:
    with table_of(tmp_path, pa.float64()) as table:
        table.upsert(rows(7.0, pa.float64()))
        table.upsert(rows("7.0", pa.string(), 2))
        assert table.to_arrow(columns=["v"]).to_pylist() == [{"v": 2}]


def test_writers_with_different_lookup_scopes_are_refused(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.string()), ("p", pa.string())])
    row = pa.table({"id": ["a"], "p": ["x"]})
    many = {"hoodie.write.concurrency.mode": "optimistic_concurrency_control"}
    with hoodoo.create_table(
        tmp_path / "t", schema=schema, record_key=["id"], partition_by=["p"], properties=many
    ) as table:
        table.upsert(row)
        everywhere = {**many, "hoodie.index.type": "GLOBAL_SIMPLE"}
        with (
            hoodoo.open_table(tmp_path / "t", properties=everywhere) as other,
            pytest.raises(WriterDisagreementError, match="index"),
        ):
            other.upsert(row)


@pytest.mark.spec("REG-1")
@pytest.mark.parametrize("index", ["SIMPLE", "GLOBAL_SIMPLE"])
def test_services_run_at_the_same_time_as_writers_with_another_index(
    tmp_path: Path, index: str
) -> None:
    many = {"hoodie.write.concurrency.mode": "optimistic_concurrency_control"}
    kinds = ({}, {"hoodie.index.type": "GLOBAL_SIMPLE"})
    table_of(tmp_path, pa.string(), partition_by=["v"], properties=many).close()
    with hoodoo.open_table(tmp_path / "t", properties={**many, "hoodie.index.type": index}) as one:
        one.upsert(rows("a", pa.string()))
        for kind in kinds:
            with hoodoo.open_table(tmp_path / "t", properties={**many, **kind}) as worker:
                worker.services.clean()
                entered = registered_writers(one.context)
                assert sorted(each.buckets for each in entered) == ["", "all"]
                if kind.get("hoodie.index.type", "SIMPLE") == index:
                    worker.upsert(rows("b", pa.string()))
                    continue
                with pytest.raises(WriterDisagreementError, match="index"):  # it writes
                    worker.upsert(rows("b", pa.string()))
                entered = registered_writers(one.context)
                assert sorted(each.buckets for each in entered) == ["", "all"]
                one.upsert(rows("c", pa.string()))  # the worker is in no writer's way


@pytest.mark.spec("REG-1")
def test_a_writer_registers_at_the_same_time_as_services_with_another_index(tmp_path: Path) -> None:
    many = {"hoodie.write.concurrency.mode": "optimistic_concurrency_control"}
    with table_of(tmp_path, pa.string(), partition_by=["v"], properties=many) as worker:
        worker.services.clean()
        everywhere = {**many, "hoodie.index.type": "GLOBAL_SIMPLE"}
        with hoodoo.open_table(tmp_path / "t", properties=everywhere) as writer:
            writer.upsert(rows("a", pa.string()))
            assert worker.services.clean() is None


def test_without_partitions_every_index_has_the_same_lookup_scope(tmp_path: Path) -> None:
    many = {"hoodie.write.concurrency.mode": "optimistic_concurrency_control"}
    with table_of(tmp_path, pa.string(), properties=many) as table:
        table.upsert(rows("a", pa.string()))
        everywhere = {**many, "hoodie.index.type": "GLOBAL_SIMPLE"}
        with hoodoo.open_table(tmp_path / "t", properties=everywhere) as other:
            other.upsert(rows("a", pa.string(), 2))
        assert table.to_arrow(columns=["v"]).to_pylist() == [{"v": 2}]


def test_rows_prepared_for_another_key_type_are_written_again(tmp_path: Path) -> None:
    """Two first writes of a table: one was prepared before the other set the column's type."""
    made = {"record_key": ["id"]}
    with (
        hoodoo.create_table(tmp_path / "t", **made) as table,
        hoodoo.open_table(tmp_path / "t") as other,
    ):
        before = table.context.snapshot()
        other.upsert(rows(7.0, pa.float64()))
        plan = write_request_of(table.settings, table.config, WriteOperation.UPSERT)
        workload = LocalWorkload(table.context.ports, rows(7, pa.int64(), 2))
        work = prepare_write(table.context, plan, workload, before)
        with pytest.raises(SchemaConflictError, match="write the rows again"):
            write_prepared(work)
        table.upsert(rows(7, pa.int64(), 2))
        assert table.to_arrow(columns=["v"]).to_pylist() == [{"v": 2}]


NUMBERS = st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=20)


@given(
    values=NUMBERS,
    kind=st.sampled_from([pa.int32(), pa.int64(), pa.float64(), pa.string()]),
    form=st.sampled_from([pa.int32(), pa.int64(), pa.dictionary(pa.int32(), pa.int32())]),
)
def test_texts_are_those_of_the_stored_column(
    values: list[int], kind: pa.DataType, form: pa.DataType
) -> None:
    spec = KeySpec(
        record_key_fields=("k",), partition_fields=("k",), key_generator=KeyGenerator.SIMPLE
    )
    plain = pa.array(values, pa.int32())
    schema = pa.schema([("k", kind)])
    encoded = pa.types.is_dictionary(form)
    given_column = plain.dictionary_encode() if encoded else pc.cast(plain, form)
    stored = pa.table({"k": pc.cast(plain, kind)})
    if form == pa.int64() and kind == pa.int32():
        stored = pa.table({"k": pc.cast(plain, pa.int64())})
    came = key_columns(pa.table({"k": given_column}), spec, schema)
    assert came == stored
    assert record_keys(came, spec) == record_keys(stored, spec)
    assert partition_paths(came, spec) == partition_paths(stored, spec)
