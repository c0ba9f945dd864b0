"""SQL that writes rows: CREATE TABLE, INSERT, UPDATE, DELETE and MERGE, each one commit."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import ParseException

import hoodoo
import hoodoo.spark
from hoodoo.spark import row_changes
from hoodoo.spark.row_changes import SparkStatement
from hoodoo.spark.spark_table import SparkSnapshot
from hoodoo.spark.sql import statements
from hoodoo.spark.sql.names import load_pinned
from tests.spark.conftest import DRIVER_BYTES, Sql
from timeline.errors import (
    HoodooError,
    InvalidInputError,
    SettingError,
    StorageUnavailableError,
)

pytestmark = pytest.mark.spark

COLUMNS = "(ts BIGINT, id STRING, guest STRING, fare DOUBLE, city STRING)"
KEYED = "TBLPROPERTIES (primaryKey = 'id', preCombineField = 'ts')"
FOUR = (
    "(1, 'a', 'ann', 10.0, 'rome'), (2, 'b', 'bob', 20.0, 'rome'), "
    "(3, 'c', 'cid', 30.0, 'oslo'), (4, 'd', 'dan', 40.0, 'bern')"
)


@pytest.fixture
def stays(sql: Sql) -> str:
    sql(f"CREATE TABLE stays {COLUMNS} USING hudi {KEYED} PARTITIONED BY (city)")
    sql(f"INSERT INTO stays VALUES {FOUR}")
    return "stays"


def commits(spark: Any, name: str) -> int:
    with hoodoo.spark.table(spark, name) as table:
        return len(table.history())


def test_a_created_table_keeps_its_properties_and_its_entry(
    spark: Any, sql: Sql, stays: str
) -> None:
    with hoodoo.spark.table(spark, stays) as table:
        config = table.config
    assert (config.record_key_fields, config.ordering_fields) == (("id",), ("ts",))
    assert (config.partition_fields, config.hive_style_partitioning) == (("city",), True)
    entry = {row[0]: row[1] for row in spark.sql("DESCRIBE EXTENDED stays").collect()}
    assert (entry["Provider"], entry["Type"]) == ("hudi", "MANAGED")
    assert spark.catalog.tableExists("stays")
    assert sql("SELECT count(*) FROM stays WHERE fare > 15") == [(3,)]


def test_update_and_delete_find_rows_by_conditions(spark: Any, sql: Sql, stays: str) -> None:
    sql("UPDATE stays SET fare = fare * 2, guest = upper(guest) WHERE city = 'rome' AND ts > 1")
    assert sql("SELECT guest, fare FROM stays WHERE id IN ('a', 'b')") == [
        ("BOB", 40.0),
        ("ann", 10.0),
    ]
    sql("DELETE FROM stays AS s WHERE s.fare >= (SELECT max(fare) FROM stays WHERE city <> 'bern')")
    assert sql("SELECT id FROM stays") == [("a",), ("c",)]
    assert commits(spark, stays) == 3


def test_merge_updates_deletes_and_inserts_in_one_commit(spark: Any, sql: Sql, stays: str) -> None:
    sql(
        """
        MERGE INTO stays AS t
        USING (
            SELECT 9L ts, 'a' id, 'amy' guest, 5.0D fare, 'rome' city
            UNION ALL SELECT 9L, 'b', 'x', 0D, 'rome'
            UNION ALL SELECT 9L, 'e', 'eve', 50D, 'oslo'
        ) AS s ON t.id = s.id
        WHEN MATCHED AND s.guest = 'x' THEN DELETE
        WHEN MATCHED THEN UPDATE SET fare = t.fare + s.fare, ts = s.ts
        WHEN NOT MATCHED THEN INSERT *
        WHEN NOT MATCHED BY SOURCE AND t.city = 'bern' THEN UPDATE SET guest = 'gone'
        """
    )
    assert sql("SELECT id, guest, fare, ts FROM stays") == [
        ("a", "ann", 15.0, 9),
        ("c", "cid", 30.0, 3),
        ("d", "gone", 40.0, 4),
        ("e", "eve", 50.0, 9),
    ]
    result = hoodoo.spark.last_result(spark)
    assert (result.rows_inserted, result.rows_updated, result.rows_deleted) == (1, 2, 1)
    assert commits(spark, stays) == 2


@pytest.mark.parametrize(
    "kind",
    ["keyed", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("global", "keyless"))],
)
def test_tasks_of_the_cluster_merge_as_the_driver_does(spark: Any, sql: Sql, kind: str) -> None:
    key = "" if kind == "keyless" else "primaryKey = 'id', "
    index = "GLOBAL_SIMPLE" if kind == "global" else "SIMPLE"
    sql(
        "CREATE TABLE stays (id STRING, fare DOUBLE, city STRING) USING hudi TBLPROPERTIES "
        f"({key}'hoodie.index.type' = '{index}') PARTITIONED BY (city)"
    )
    sql("INSERT INTO stays VALUES ('a', 1D, 'rome'), ('b', 2D, 'rome'), ('c', 3D, 'oslo')")
    spark.conf.set(f"spark.{DRIVER_BYTES}", "0")
    moved = ", city = s.city" if kind == "global" else ""
    sql(
        "MERGE INTO stays t USING (SELECT * FROM VALUES ('a', 0D, 'rome'), ('b', 9D, 'oslo'), "
        "('n', 7D, 'bern') AS s (id, fare, city)) s ON t.id = s.id "
        f"WHEN MATCHED AND s.fare = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET fare = s.fare{moved} "
        "WHEN NOT MATCHED THEN INSERT *"
    )
    assert sql("SELECT id, fare, city FROM stays") == [
        ("b", 9.0, "oslo" if moved else "rome"),
        ("c", 3.0, "oslo"),
        ("n", 7.0, "bern"),
    ]
    sql("UPDATE stays SET fare = fare + 1 WHERE city <> 'bern'")
    sql("DELETE FROM stays WHERE id = 'c'")
    assert sql("SELECT id, fare FROM stays") == [("b", 10.0), ("n", 7.0)]


@pytest.mark.parametrize("losses", [1, 9])
def test_a_merge_that_loses_rows_of_its_source_begins_again(
    spark: Any, sql: Sql, stays: str, monkeypatch: pytest.MonkeyPatch, losses: int
) -> None:
    """Spark would compute them again with other numbers, and then insert wrong ones."""
    fixed, computed = SparkStatement.fixed, []

    def lossy(self: SparkStatement, rows: Any) -> Any:
        made = fixed(self, rows)
        computed.append(made)
        if len(computed) <= losses:  # as when an executor dies
            row_changes._blocks(made).unpersist(True)
        return made

    monkeypatch.setattr(SparkStatement, "fixed", lossy)
    spark.conf.set(f"spark.{DRIVER_BYTES}", "0")  # the driver loses nothing
    merge = (
        "MERGE INTO stays t USING (SELECT 9L ts, id, uuid() guest, 7D fare, 'rome' city FROM "
        "VALUES ('a'), ('b'), ('m'), ('n') AS v (id) ORDER BY rand()) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET fare = s.fare, ts = s.ts WHEN NOT MATCHED THEN INSERT *"
    )
    if losses > 1:
        with pytest.raises(StorageUnavailableError) as lost:
            sql(merge)
        assert lost.value.kind == "executors_lost"
        assert commits(spark, stays) == 1
        return
    sql(merge)
    assert len(computed) == 2
    assert sql("SELECT id, fare FROM stays WHERE city = 'rome'") == [
        (id_, 7.0) for id_ in ("a", "b", "m", "n")
    ]
    assert commits(spark, stays) == 2


@pytest.mark.parametrize(
    ("on", "update", "fares"),
    [
        ("t.id = s.id AND s.city = t.city", "SET *", [5.0, 20.0, 30.0, 40.0, 7.0]),
        ("t.id = s.id", "SET ts = s.ts, fare = t.fare + s.fare", [15.0, 20.0, 30.0, 40.0, 7.0]),
        ("t.id = s.id AND t.guest < s.guest", "SET guest = s.guest", [10.0, 20.0, 30.0, 40.0, 7.0]),
    ],
)
def test_few_source_rows_find_their_keys_without_tasks_that_read_the_table(
    sql: Sql, stays: str, monkeypatch: pytest.MonkeyPatch, on: str, update: str, fares: list[float]
) -> None:
    monkeypatch.setattr(SparkSnapshot, "to_df", lambda _: pytest.fail("a task reads the table"))
    with pytest.raises(InvalidInputError) as refused:
        sql(
            "MERGE INTO stays t USING (SELECT 'a' id, 1D fare UNION ALL SELECT 'a', 2D) s "
            "ON t.id = s.id WHEN MATCHED THEN UPDATE SET fare = s.fare"
        )
    assert refused.value.kind == "merge_row_twice"
    inserts = "" if "guest" in on else "WHEN NOT MATCHED THEN INSERT *"
    sql(
        "MERGE INTO stays t USING (SELECT 9L ts, 'a' id, 'zoe' guest, 5D fare, 'rome' city UNION "
        f"ALL SELECT 9L, 'n', 'nia', 7D, 'oslo') s ON {on} WHEN MATCHED THEN UPDATE {update} {inserts}"
    )
    monkeypatch.undo()
    found = sql("SELECT id, fare, guest FROM stays")
    assert [row[1] for row in found] == fares[: 5 if inserts else 4]
    assert found[0][2] == ("ann" if "fare" in update else "zoe")
    assert found[1] == ("b", 20.0, "bob")


def test_a_row_matched_twice_is_refused_before_the_commit(spark: Any, sql: Sql, stays: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        sql(
            "MERGE INTO stays t USING (SELECT 'a' id, 1D fare UNION ALL SELECT 'a', 2D) s "
            "ON t.id = s.id WHEN MATCHED THEN UPDATE SET fare = s.fare"
        )
    assert refused.value.kind == "merge_row_twice"
    assert commits(spark, stays) == 1


def test_an_insert_with_the_key_of_another_row_is_refused(sql: Sql, stays: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        sql(
            "MERGE INTO stays t USING (SELECT 5L ts, 'a' id, 'zoe' guest, 1D fare, 'rome' city) s "
            "ON t.id = s.id AND t.guest = s.guest WHEN NOT MATCHED THEN INSERT *"
        )
    assert refused.value.kind == "merge_on"
    sql(
        "MERGE INTO stays t USING (SELECT 5L ts, 'z' id, 'zoe' guest, 1D fare, 'rome' city) s "
        "ON t.id = s.id AND t.guest = s.guest WHEN NOT MATCHED THEN INSERT *"
    )
    assert sql("SELECT count(*) FROM stays") == [(5,)]
    for number, (kind, stored, other) in enumerate(
        (("CHAR(4)", "'ab'", "'ab'"), ("INT", "1", "1.5D"))
    ):
        name = f"t{number}"
        sql(f"CREATE TABLE {name} (k {kind}, n INT) USING hudi TBLPROPERTIES (primaryKey = 'k')")
        sql(f"INSERT INTO {name} VALUES ({stored}, 0)")
        with pytest.raises(InvalidInputError) as refused:  # it is stored as the key of that row
            sql(
                f"MERGE INTO {name} t USING (SELECT {other} k, 1 n) s ON t.k = s.k "
                "WHEN NOT MATCHED THEN INSERT *"
            )
        assert refused.value.kind == "merge_on"


def test_the_driver_compares_texts_with_a_length_as_spark_does(
    sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = "(id INT, code CHAR(4), fare DOUBLE, n INT)"
    sql(f"CREATE TABLE t {columns} USING hudi TBLPROPERTIES (primaryKey = 'id')")
    sql(f"CREATE TABLE plain {columns} USING parquet")
    for name in ("t", "plain"):
        sql(f"INSERT INTO {name} VALUES (1, 'ab', 1D, 0), (2, 'cd  ', 1D, 0), (3, 'efgh', 1D, 0)")
    sql("CREATE TABLE other (id INT, code CHAR(6)) USING parquet")
    sql("INSERT INTO other VALUES (1, 'ab'), (2, 'c'), (3, 'efgh')")
    short = "(SELECT 1 id, 'ab' code, 1D fare, 9 n)"
    same = "t.id = s.id AND t.code = s.code"
    counts = dict.fromkeys((1, 2, 3), 0)
    for source, on in (
        ("other", same),  # both have a length
        (short, same),  # each space of a text counts
        (short.replace("ab", "ab  "), same),
        (short, "t.id = s.id AND t.code = 'ab'"),  # those of a constant do not
    ):
        for (found,) in sql(f"SELECT t.id FROM plain t JOIN {source} s ON {on}"):
            counts[found] += 1
        with monkeypatch.context() as patched:
            patched.setattr(SparkSnapshot, "to_df", lambda _: pytest.fail("a task reads the table"))
            sql(f"MERGE INTO t USING {source} s ON {on} WHEN MATCHED THEN UPDATE SET n = t.n + 1")
    assert sql("SELECT n, id FROM t") == sorted((n, id_) for id_, n in counts.items())
    assert sorted(counts.values()) == [0, 1, 3]
    whole = short.replace("ab", "ab  ")  # then the driver reads the joined columns only
    on = f"{same} AND t.fare = s.fare"
    sql(f"MERGE INTO t USING {whole} s ON {on} WHEN MATCHED THEN UPDATE SET *")
    assert sql("SELECT code, n FROM t WHERE id = 1") == [("ab  ", 9)]


def test_insert_overwrite_replaces_static_and_dynamic_partitions(
    spark: Any, sql: Sql, stays: str
) -> None:
    sql("INSERT OVERWRITE stays PARTITION (city = 'rome') SELECT 5L, 'n', 'nia', 1D")
    assert sql("SELECT id, city FROM stays") == [("c", "oslo"), ("d", "bern"), ("n", "rome")]
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        sql("INSERT OVERWRITE stays SELECT 6L, 'm', 'mia', 1D, 'oslo'")
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert sql("SELECT id, city FROM stays") == [("d", "bern"), ("m", "oslo"), ("n", "rome")]
    sql("INSERT OVERWRITE stays SELECT 7L, 'o', 'ole', 1D, 'bern'")
    assert sql("SELECT id FROM stays") == [("o",)]
    sql("INSERT OVERWRITE stays PARTITION (city) SELECT 8L, 'p', 'pia', 1D, 'oslo'")
    assert sql("SELECT id FROM stays") == [("p",)]


def test_texts_of_partition_are_values_of_its_columns(spark: Any, sql: Sql) -> None:
    encoded = "primaryKey = 'id', 'hoodie.datasource.write.partitionpath.urlencode' = 'true'"
    columns = "(id INT, name STRING, city STRING, n INT)"
    sql(f"CREATE TABLE s {columns} USING hudi TBLPROPERTIES ({encoded}) PARTITIONED BY (city, n)")
    sql("INSERT INTO s VALUES (1, 'a', 'x/y', 7), (2, 'b', 'x/y', 8), (3, 'c', 'z', 7)")
    sql("INSERT OVERWRITE s PARTITION (city = 'x/y', n = 007) SELECT 4, 'd'")
    assert sql("SELECT id FROM s") == [(2,), (3,), (4,)]
    assert sql("SHOW PARTITIONS s PARTITION (n = 07)") == [("city=x%2Fy/n=7",), ("city=z/n=7",)]
    for text in (
        "INSERT OVERWRITE s PARTITION (city = 'z', n = 'many') SELECT 5, 'e'",
        "INSERT INTO s PARTITION (city = 'z', n = 'many') SELECT 5, 'e'",
        "INSERT OVERWRITE s PARTITION (name = 'a') SELECT 5, 'z', 7",
        "ALTER TABLE s DROP PARTITION (nope = 'z')",
        "TRUNCATE TABLE s PARTITION (name = 'a')",
    ):
        with pytest.raises(InvalidInputError, match=r"does not fit|no partition columns"):
            sql(text)
    sql("ALTER TABLE s DROP PARTITION (city = 'x/y')")
    assert sql("SELECT id FROM s") == [(3,)]


def test_an_insert_takes_the_operation_of_its_options(spark: Any, sql: Sql, stays: str) -> None:
    one = spark.createDataFrame([(9, "a", "amy", 1.0, "rome")], spark.table(stays).schema[5:])
    for count, operation in enumerate(("bulk_insert", "insert"), 2):
        spark.conf.set("hoodie.datasource.write.operation", operation)
        try:
            sql("INSERT INTO stays VALUES (9, 'a', 'amy', 1.0, 'rome')")
        finally:
            spark.conf.unset("hoodie.datasource.write.operation")
        assert len(sql("SELECT ts FROM stays WHERE id = 'a'")) == count
    option = ("hoodie.spark.sql.insert.into.operation", "insert")
    one.write.option(*option).insertInto(stays)
    one.writeTo(stays).option(*option).append()
    assert len(sql("SELECT ts FROM stays WHERE id = 'a'")) == 5
    with pytest.raises(InvalidInputError, match="RESET"):
        one.write.option("hoodie.datasource.write.operation", "delete").insertInto(stays)
    with pytest.raises(HoodooError, match="no Hudi table has this name"):
        one.write.format("hoodoo").insertInto("nowhere")
    whole = ("hoodie.datasource.write.operation", "insert_overwrite_table")
    one.write.option(*whole).insertInto(stays)
    assert sql("SELECT id, ts FROM stays") == [("a", 9)]


def test_an_insert_treats_known_keys_as_its_options_say(spark: Any, sql: Sql, stays: str) -> None:
    policy, mode = "hoodie.datasource.insert.dup.policy", "hoodie.sql.insert.mode"
    bulk = "hoodie.sql.bulk.insert.enable"
    for number, (options, times) in enumerate(
        (
            ({policy: "fail"}, None),
            ({mode: "STRICT"}, None),
            ({mode: "strict", bulk: "true"}, None),
            ({policy: "drop"}, [1]),
            ({mode: "upsert"}, [13]),
            ({mode: "non-strict"}, [13, 14]),
            ({bulk: "true"}, [13, 14, 15]),
            (
                {mode: "strict", "hoodie.spark.sql.insert.into.operation": "bulk_insert"},
                [13, 14, 15, 16],
            ),
        ),
        9,
    ):
        text = (
            "INSERT INTO stays VALUES ({0}, 'a', 'amy', 1.0, 'rome'), ({0}, 'n{0}', 'x', 1.0, 'y')"
        )
        for key, value in options.items():
            spark.conf.set(key, value)
        try:
            if times is None:
                with pytest.raises((InvalidInputError, SettingError)) as refused:
                    sql(text.format(number))
                kind = "setting_contradiction" if bulk in options else "key_exists"
                assert refused.value.kind == kind
            else:
                sql(text.format(number))
        finally:
            for key in options:
                spark.conf.unset(key)
        if times is not None:
            assert sql("SELECT ts FROM stays WHERE id = 'a'") == [(one,) for one in times]
            assert sql(f"SELECT ts FROM stays WHERE id = 'n{number}'") == [(number,)]
    assert sql("SELECT count(*) FROM stays WHERE city = 'y'") == [(5,)]


def test_columns_and_fields_of_structs_are_set(sql: Sql) -> None:
    columns = "(id INT, x INT, s STRUCT<x: INT, y: STRUCT<z: INT, w: STRING>>, m MAP<STRING, INT>)"
    sql(f"CREATE TABLE t {columns} USING hudi TBLPROPERTIES (primaryKey = 'id')")
    struct = "named_struct('x', 3, 'y', named_struct('z', 4, 'w', 'q'))"
    sql(f"INSERT INTO t VALUES (1, 2, {struct}, map('k', 4)), (2, 2, NULL, NULL)")
    merge = "MERGE INTO t USING (SELECT 1 id) q ON t.id = q.id WHEN {} MATCHED THEN {}"
    for text in (
        "UPDATE t SET s.nope = 9",
        "UPDATE t SET x.y = 9",
        "UPDATE t SET other.x = 9",
        "UPDATE t SET m.k = 9",
        "UPDATE t SET m['k'] = 9",
        "UPDATE t SET s.x = 9, S.X = 8",
        "UPDATE t SET s.x = 9, s = NULL",
        "UPDATE t SET s.y = NULL, s.y.z = 9",
        "UPDATE t SET s.x = array(1)",
        "UPDATE t SET s.x = 'three'",
        "UPDATE t SET s.x = DEFAULT",
        merge.format("NOT", "INSERT (id, s.x) VALUES (3, 9)"),
    ):
        with pytest.raises((InvalidInputError, ParseException)):
            sql(text)
    sql("UPDATE t AS u SET u.s.y.z = u.s.x + 10, S.x = x, U.x = u.s.x")
    kept = "SELECT id, x, s, s.x, s.y.z, s.y.w FROM t"
    assert [row[:2] + row[3:] for row in sql(kept)] == [
        (1, 3, 2, 13, "q"),
        (2, None, 2, None, None),
    ]
    sql(merge.format("", "UPDATE SET t.s.y = named_struct('z', q.id, 'w', t.s.y.w)"))
    sql(merge.format("NOT", "INSERT (id) VALUES (q.id)"))
    fields = "SELECT s.x, s.y.z, s.y.w, m['k'] FROM t WHERE id = 1"
    assert sql(fields) == [(2, 1, "q", 4)]
    sql("UPDATE t SET s.x = '5', s.y = named_struct('z', '6', 'w', 7) WHERE id = 1")
    assert sql(fields) == [(5, 6, "7", 4)]


def test_update_and_merge_read_texts_as_values_of_other_types(spark: Any, sql: Sql) -> None:
    columns = "(id INT, i INT, d DOUBLE, b BOOLEAN, day DATE)"
    sql(f"CREATE TABLE t {columns} USING hudi TBLPROPERTIES (primaryKey = 'id')")
    sql("INSERT INTO t VALUES (1, 1, 1D, true, NULL)")
    spark.udf.register("inverse", lambda number: 1 // number, "int")
    merge = (
        "MERGE INTO t USING (SELECT 1 id, '5' i, '2.5' d, 'false' b, '2024-02-03' day UNION ALL "
        "SELECT 2, '{}', '1', 'true', NULL) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    for text, why in (
        (merge.format("many"), "CAST_INVALID_INPUT"),
        ("UPDATE t SET i = 'many'", "CAST_INVALID_INPUT"),
        ("UPDATE t SET i = (SELECT id FROM range(2))", "SCALAR_SUBQUERY_TOO_MANY_ROWS"),
        ("UPDATE t SET i = element_at(array(1), 0)", "INDEX_"),
        (merge.format(1).replace("SET *", "SET i = raise_error('no such stay')"), "no such stay"),
        ("UPDATE t SET i = inverse(id - 1)", r"statement: ZeroDivisionError: .* by zero"),
        ("CREATE TABLE u USING hudi AS SELECT inverse(0) AS i", "ZeroDivisionError"),
    ):
        with pytest.raises(InvalidInputError, match=why) as refused:
            sql(text)
        assert len(refused.value.message) < 300
    with pytest.raises(InvalidInputError, match="has type int"):
        sql("UPDATE t SET i = array(1)")
    assert commits(spark, "t") == 1
    sql(merge.format(" 7 "))
    sql("UPDATE t SET i = '6' WHERE id = 1")
    day = date(2024, 2, 3)
    assert sql("SELECT id, i, d, b, day FROM t") == [
        (1, 6, 2.5, False, day),
        (2, 7, 1.0, True, None),
    ]


def test_insert_assigns_listed_columns_and_refuses_other_types(sql: Sql, stays: str) -> None:
    sql("INSERT INTO stays (city, id, ts) VALUES ('oslo', 'x', 8)")
    assert sql("SELECT * FROM stays WHERE id = 'x'")[0][5:] == (8, "x", None, None, "oslo")
    with pytest.raises(InvalidInputError, match="has type bigint"):
        sql("INSERT INTO stays VALUES (TRUE, 'y', 'yan', 1D, 'oslo')")
    with pytest.raises(InvalidInputError, match="2 values a row"):
        sql("INSERT INTO stays VALUES (1, 'y')")
    with pytest.raises(InvalidInputError) as unknown:
        sql("INSERT INTO stays (nope) VALUES (1)")
    assert unknown.value.kind == "unknown_column"


def test_statements_by_path_need_no_name(spark: Any, sql: Sql, stays: str) -> None:
    with hoodoo.spark.table(spark, stays) as table:
        where = table.path
    sql(f"UPDATE hudi.`{where}` SET fare = 0 WHERE id = 'a'")
    sql(f"DELETE FROM hudi.`{where}` WHERE id IN (SELECT id FROM hudi.`{where}` WHERE ts > 2)")
    assert sql(f"SELECT p.id, fare FROM hudi.`{where}` p") == [("a", 0.0), ("b", 20.0)]


def test_a_select_creates_a_table(spark: Any, sql: Sql, stays: str) -> None:
    sql(
        "CREATE TABLE copy USING hudi TBLPROPERTIES (primaryKey = 'id', type = 'mor') AS "
        "SELECT id, city, fare FROM stays WHERE fare > 15"
    )
    sql("UPDATE copy SET fare = -1 WHERE id = 'b'")
    assert sql(
        "SELECT c.id, c.fare, s.fare FROM copy c JOIN stays s USING (id) WHERE c.fare < 35"
    ) == [("b", -1.0, 20.0), ("c", 30.0, 30.0)]
    assert spark.table("copy").count() == 3
    sql("DROP TABLE copy")
    assert not spark.catalog.tableExists("copy")
    with pytest.raises(HoodooError, match="drop it first"):
        sql("CREATE TABLE stays (id INT) USING hudi")


def test_old_states_and_changes_are_tables_of_a_query(spark: Any, sql: Sql, stays: str) -> None:
    assert len(sql("SELECT id FROM hudi_query('stays', 'read_optimized')")) == 4
    with pytest.raises(InvalidInputError, match="hudi_query takes"):
        sql("SELECT id FROM hudi_query('stays', 'incremental')")
    first = hoodoo.spark.last_result(spark).requested_time
    sql("UPDATE stays SET fare = 11 WHERE id = 'a'")
    assert sql(f"SELECT fare FROM stays TIMESTAMP AS OF '{first}' WHERE stays.id = 'a'") == [
        (10.0,)
    ]
    assert sql(f"SELECT x.fare FROM stays VERSION AS OF '{first}' x WHERE x.id = 'a'") == [(10.0,)]
    assert sql("SELECT count(*) FROM hudi_table_changes('stays', 'latest_state', 'earliest')") == [
        (4,)
    ]


def test_views_read_the_newest_rows_of_tables_by_name(spark: Any, sql: Sql, stays: str) -> None:
    sql("CREATE VIEW cheap AS SELECT id FROM stays WHERE fare < 25")
    sql("CREATE TEMPORARY VIEW cheaper AS SELECT id FROM cheap WHERE id > 'a'")
    sql("UPDATE stays SET fare = 1 WHERE id = 'd'")
    assert sql("WITH c AS (SELECT * FROM cheaper) SELECT * FROM c") == [("b",), ("d",)]
    assert spark.table("cheap").count() == 3
    sql("CREATE GLOBAL TEMPORARY VIEW cheapest AS SELECT id FROM stays WHERE fare < 5")
    assert sql("SELECT * FROM global_temp.cheapest") == [("d",)]
    spark.catalog.dropGlobalTempView("cheapest")
    with (
        hoodoo.spark.table(spark, stays) as table,
        pytest.raises(InvalidInputError, match="LOCATION"),
    ):
        sql(f"CREATE TEMPORARY VIEW other AS SELECT * FROM hudi.`{table.path}`")
    spark.catalog.dropTempView("cheaper")


def test_parameters_are_values_of_a_statement(spark: Any, sql: Sql, stays: str) -> None:
    spark.sql("UPDATE stays SET guest = :who WHERE id = :id", {"who": "o'neil \\ ü", "id": "a"})
    spark.sql("DELETE FROM stays WHERE ts > ? AND fare > ?", [3, 1.5])
    assert sql("SELECT id, guest FROM stays WHERE id IN ('a', 'd')") == [("a", "o'neil \\ ü")]


def test_a_wrong_name_or_value_is_a_short_error(sql: Sql, stays: str) -> None:
    for text in (
        "UPDATE stays SET nope = 1",
        "UPDATE stays SET fare = nope",
        "DELETE FROM stays WHERE nope = 1",
        "UPDATE stays SET ts = CAST(guest AS BIGINT) + 9",
        "UPDATE stays SET fare = 'much'",
        "UPDATE stays SET id = 'z' WHERE id = 'a'",
        "UPDATE stays SET ts = 0 WHERE id = 'b'",
        "MERGE INTO stays t USING nowhere s ON t.id = s.id WHEN MATCHED THEN DELETE",
    ):
        with pytest.raises(InvalidInputError) as refused:
            sql(text)
        assert len(str(refused.value)) < 400
        assert "\tat " not in str(refused.value)


def test_columns_may_have_the_database_and_the_table_before_them(
    spark: Any, sql: Sql, stays: str
) -> None:
    db = spark.catalog.currentDatabase()
    sql(f"UPDATE {db}.stays SET {db}.stays.fare = 1 WHERE {db}.stays.id = 'a'")
    sql(
        f"MERGE INTO {db}.stays USING (SELECT 'b' id) s ON {db.upper()}.`stays`.id = s.id "
        f"WHEN MATCHED AND spark_catalog.{db}.stays.ts = 2 THEN UPDATE SET fare = {db}.stays.fare + 1"
    )
    sql(
        f"DELETE FROM stays WHERE {db}.stays.fare > 25 AND "
        f"EXISTS (SELECT 1 FROM {db}.stays o WHERE o.city = stays.city AND o.id = 'c')"
    )
    assert sql("SELECT id, fare FROM stays") == [("a", 1.0), ("b", 21.0), ("d", 40.0)]


def test_inserts_find_columns_by_name_and_read_their_own_table(
    spark: Any, sql: Sql, stays: str
) -> None:
    if spark.version >= "4":
        sql("INSERT INTO stays BY NAME SELECT 'e' id, 'bern' city, 5L ts")
    else:
        sql("INSERT INTO stays (id, city, ts) VALUES ('e', 'bern', 5)")
    sql("INSERT INTO stays SELECT * FROM stays")
    sql("WITH old AS (SELECT * FROM stays WHERE id = 'a') INSERT INTO stays SELECT ts + 9, 'f', "
        "guest, fare, city FROM old")  # fmt: skip
    assert [row[:2] for row in sql("SELECT id, ts FROM stays")] == [
        ("a", 1), ("b", 2), ("c", 3), ("d", 4), ("e", 5), ("f", 10),
    ]  # fmt: skip


@pytest.mark.parametrize("changes", ["update", "merge"])
def test_random_values_that_a_lost_executor_had_are_not_computed_again(
    spark: Any, sql: Sql, stays: str, monkeypatch: pytest.MonkeyPatch, changes: str
) -> None:
    checked, computed = SparkStatement.checked, []

    def lossy(self: SparkStatement, *args: Any) -> Any:
        made = checked(self, *args)
        computed.append(made)
        if len(computed) == 1:  # as when an executor dies
            for rows in self._cached:
                row_changes._blocks(rows).unpersist(True)
        return made

    monkeypatch.setattr(SparkStatement, "checked", lossy)
    spark.conf.set(f"spark.{DRIVER_BYTES}", "0")
    if changes == "update":
        sql("UPDATE stays SET fare = rand() WHERE city = 'rome'")
    else:
        sql(
            "MERGE INTO stays t USING (SELECT explode(array('a', 'b')) id) s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET fare = rand()"
        )
    assert len(computed) == 2
    assert sql("SELECT count(*) FROM stays WHERE fare < 1") == [(2,)]
    assert commits(spark, stays) == 2


def test_common_table_expressions_stand_before_each_statement(
    spark: Any, sql: Sql, stays: str
) -> None:
    with hoodoo.spark.table(spark, stays) as table:
        where = f"hudi.`{table.path}`"
    new = "WITH old AS (SELECT id FROM stays WHERE ts < 3), new AS"
    sql(
        f"{new} (SELECT id, fare + 1 fare FROM {where} WHERE id IN (SELECT id FROM old) UNION ALL "
        "SELECT 'n', 9D) MERGE INTO stays t USING new ON t.id = new.id AND t.id <> (SELECT min(id) "
        "FROM new) WHEN MATCHED THEN UPDATE SET fare = new.fare + (SELECT count(*) FROM new) "
        "WHEN NOT MATCHED AND new.id = 'n' THEN INSERT (id, fare, ts, city) VALUES (id, fare, 1, 'rome')"
    )
    assert sql("SELECT id, fare FROM stays") == [
        *[("a", 10.0), ("b", 24.0), ("c", 30.0), ("d", 40.0), ("n", 9.0)]
    ]
    sql(f"{new} (SELECT 'c' id) UPDATE stays SET fare = 0 WHERE id IN (SELECT id FROM new)")
    sql(f"{new} (SELECT 'd' id) DELETE FROM stays WHERE id IN (SELECT id FROM new)")
    sql(f"{new} (SELECT 5L, 'e', 'eve', 50D, 'oslo') INSERT INTO stays SELECT * FROM new")
    assert sql("SELECT id, fare FROM stays WHERE id IN ('c', 'd', 'e')") == [
        ("c", 0.0),
        ("e", 50.0),
    ]


def test_a_source_by_path_is_loaded_once_and_stored_once(
    spark: Any, sql: Sql, stays: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads, stored = [], []

    def load(*args: Any) -> Any:
        loads.append(args)
        return load_pinned(*args)

    def fixed(self: SparkStatement, rows: Any) -> Any:
        kept = spark.sparkContext._jsc.sc().getPersistentRDDs().size()
        made = once(self, rows)
        stored.append(spark.sparkContext._jsc.sc().getPersistentRDDs().size() - kept)
        return made

    once = SparkStatement.fixed
    monkeypatch.setattr(statements, "load_pinned", load)
    monkeypatch.setattr(SparkStatement, "fixed", fixed)
    spark.conf.set(f"spark.{DRIVER_BYTES}", "0")  # else the driver keeps the rows of the source
    with hoodoo.spark.table(spark, stays) as table:
        where = table.path
    sql(
        f"MERGE INTO stays t USING (SELECT * FROM hudi.`{where}` WHERE id = 'a') s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET fare = s.fare + 1 WHEN NOT MATCHED THEN INSERT *"
    )
    assert (len(loads), stored) == (1, [1])
    assert sql("SELECT fare FROM stays WHERE id = 'a'") == [(11.0,)]


def test_a_statement_inside_another_is_refused(spark: Any, sql: Sql, stays: str) -> None:
    for text in (
        "FROM stays INSERT INTO stays SELECT * INSERT INTO stays SELECT *",
        "EXPLAIN INSERT INTO stays SELECT * FROM stays",
        "EXPLAIN DELETE FROM stays",
        *(["BEGIN DELETE FROM stays; END"] if spark.version >= "4" else []),
    ):
        with pytest.raises(InvalidInputError, match="cannot be part of another"):
            sql(text)
    assert commits(spark, stays) == 1


def test_a_default_is_null_and_a_view_is_no_target(spark: Any, sql: Sql, stays: str) -> None:
    sql("INSERT INTO stays VALUES (5, 'e', DEFAULT, 50.0, 'rome')")
    sql("UPDATE stays SET fare = DEFAULT WHERE id = 'a'")
    assert sql("SELECT id, guest, fare FROM stays WHERE id IN ('a', 'e')") == [
        ("a", "ann", None),
        ("e", None, 50.0),
    ]
    sql("CREATE VIEW guests AS SELECT id, guest FROM stays")
    spark.table("stays").createOrReplaceTempView("frame")
    for text in (
        "INSERT INTO guests VALUES ('z', 'zoe')",
        "UPDATE guests SET guest = 'z'",
        "DELETE FROM frame WHERE id = 'a'",
        "MERGE INTO frame t USING guests s ON t.id = s.id WHEN MATCHED THEN DELETE",
    ):
        with pytest.raises(InvalidInputError, match="not views"):
            sql(text)
    sql("DROP VIEW guests")
    spark.catalog.dropTempView("frame")
    assert commits(spark, stays) == 3


def test_a_statement_in_a_text_is_run(spark: Any, sql: Sql, stays: str) -> None:
    if spark.version < "4":
        with pytest.raises(ParseException):
            sql("EXECUTE IMMEDIATE 'DELETE FROM stays'")
        return
    sql("EXECUTE IMMEDIATE 'UPDATE stays SET fare = :n WHERE id = :id' USING 7D AS n, 'a' AS id")
    assert sql("EXECUTE IMMEDIATE 'SELECT fare FROM stays WHERE id = ?' USING 'a'") == [(7.0,)]
    sql("DECLARE OR REPLACE VARIABLE found DOUBLE")
    sql("EXECUTE IMMEDIATE 'SELECT max(fare) FROM stays' INTO found")
    sql("DELETE FROM stays WHERE fare = found")
    assert sql("SELECT id FROM stays") == [("a",), ("b",), ("c",)]
    sql("DROP TEMPORARY VARIABLE found")


def test_comments_and_semicolons_stand_around_a_statement(sql: Sql, stays: str) -> None:
    sql("-- first\n/* then\n */ UPDATE stays SET fare = 0 WHERE id = 'a' ; -- end")
    sql("  -- of 'b'\nDELETE FROM stays /* only */ WHERE id = 'b';")
    assert sql("/* a */ SELECT id, fare FROM stays WHERE ts < 3;") == [("a", 0.0)]
    assert len(sql("-- newest\nCALL show_commits('stays', 1);")) == 1
    assert len(sql("/* all */ SHOW INDEXES FROM stays")) >= 0
    assert sql("SELECT count(*) FROM stays FOR SYSTEM_TIME AS OF '2999-01-01'") == [(3,)]


@pytest.mark.parametrize("target", ["sums", "path"])
@pytest.mark.parametrize("source", ["sums", "path"])
def test_a_source_that_is_the_table_itself_is_read_again_at_each_attempt(
    spark: Any, sql: Sql, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, source: str
) -> None:
    # The source by path was read once: after a conflict the merge wrote the sum of older rows.
    path = str(tmp_path / "sums")
    sql(
        f"CREATE TABLE sums (id INT, v INT) USING hudi TBLPROPERTIES (primaryKey = 'id') LOCATION '{path}'"
    )
    sql("INSERT INTO sums VALUES (0, 0), (1, 1)")
    read = SparkStatement.checked
    rivals = [5]

    def slowly(statement: SparkStatement, *args: Any) -> Any:
        made = read(statement, *args)
        if rivals:
            with hoodoo.open_table(path) as rival:
                rival.upsert([{"id": 1, "v": rivals.pop()}])
        return made

    monkeypatch.setattr(SparkStatement, "checked", slowly)
    names = {"sums": "sums", "path": f"hudi.`{path}`"}
    sql(
        f"MERGE INTO {names[target]} t USING (SELECT 0 AS id, sum(v) AS v FROM {names[source]}) s "
        "ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = s.v"
    )
    assert sql("SELECT id, v FROM sums") == [(0, 5), (1, 5)]
