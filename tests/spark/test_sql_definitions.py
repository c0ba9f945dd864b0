"""SQL that defines tables, columns and indexes, and CALL."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pytest
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

import hoodoo.spark
from hoodoo.cli.app import main
from hoodoo.spark.sql.procedures import PROCEDURES, REFUSED_PROCEDURES
from tests.spark.conftest import Sql
from timeline.errors import HoodooError, InvalidInputError, SettingError, TableNotFoundError

pytestmark = pytest.mark.spark

COLUMNS = "(id STRING, fare INT, ts BIGINT, city STRING)"
KEYED = "TBLPROPERTIES (primaryKey = 'id', preCombineField = 'ts')"


@pytest.fixture
def stays(sql: Sql) -> str:
    sql(f"CREATE TABLE stays {COLUMNS} USING hudi {KEYED} PARTITIONED BY (city)")
    sql("INSERT INTO stays VALUES ('a', 1, 1, 'rome'), ('b', 2, 2, 'oslo'), ('c', 3, 3, 'oslo')")
    return "stays"


def columns(spark: Any, name: str) -> list[tuple[str, str]]:
    return [each for each in spark.table(name).dtypes if not each[0].startswith("_hoodie")]


def test_columns_are_added_and_with_ids_renamed_retyped_and_dropped(
    spark: Any, sql: Sql, stays: str
) -> None:
    sql("ALTER TABLE stays ADD COLUMNS (note STRING)")
    sql("INSERT INTO stays VALUES ('d', 4, 4, 'new', 'rome')")  # the partition column stays last
    assert [name for name, _ in columns(spark, stays)][-2:] == ["note", "city"]
    assert sql("DESCRIBE QUERY SELECT note FROM stays") == [("note", "string", None)]
    assert sql("SELECT id, note FROM stays WHERE city = 'rome'") == [("a", None), ("d", "new")]
    with pytest.raises(SettingError, match=r"schema\.on\.read"):
        sql("ALTER TABLE stays RENAME COLUMN note TO remark")
    sql("SET hoodie.schema.on.read.enable=true")
    try:
        sql("ALTER TABLE stays RENAME COLUMN note TO remark")
        sql("ALTER TABLE stays ALTER COLUMN fare TYPE BIGINT")
        assert dict(columns(spark, stays)) == {
            "id": "string",
            "fare": "bigint",
            "ts": "bigint",
            "city": "string",
            "remark": "string",
        }
        sql("ALTER TABLE stays DROP COLUMN remark")
        sql("UPDATE stays SET fare = 3000000000 WHERE id = 'd'")
    finally:
        spark.conf.unset("hoodie.schema.on.read.enable")
    assert sql("SELECT id, fare FROM stays WHERE fare > 2") == [("c", 3), ("d", 3000000000)]
    entry = [row[0] for row in spark.sql("DESCRIBE stays").collect()]
    assert "remark" not in entry
    assert "fare" in entry


def test_names_of_columns_match_in_any_case(spark: Any, sql: Sql) -> None:
    keyed = "TBLPROPERTIES (primaryKey = 'id', preCombineField = 'ts')"
    sql(
        f"CREATE TABLE s (ID INT, Fare INT, TS INT, City STRING) USING hudi {keyed} PARTITIONED BY (city)"
    )
    sql("INSERT INTO s VALUES (1, 5, 1, 'x'), (1, 6, 2, 'x')")
    spark.conf.set("hoodie.schema.on.read.enable", "true")
    try:
        sql("ALTER TABLE s ALTER COLUMN fare TYPE BIGINT")
        sql("ALTER TABLE s RENAME COLUMN fare TO Price")
        sql("ALTER TABLE s ADD COLUMN more INT AFTER price")
        sql("ALTER TABLE s DROP COLUMN MORE")
    finally:
        spark.conf.unset("hoodie.schema.on.read.enable")
    assert columns(spark, "s") == [
        ("ID", "int"),
        ("Price", "bigint"),
        ("TS", "int"),
        ("City", "string"),
    ]
    assert sql("SELECT id, price FROM s") == [(1, 6)]


def test_partition_columns_keep_the_types_of_their_folders(sql: Sql) -> None:
    given = {
        "primaryKey": "id",
        "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.CustomKeyGenerator",
        "hoodie.datasource.write.partitionpath.field": "city:SIMPLE,at:TIMESTAMP",
        "hoodie.keygen.timebased.timestamp.type": "EPOCHMILLISECONDS",
        "hoodie.keygen.timebased.output.dateformat": "yyyy-MM",
    }
    properties = ", ".join(f"'{key}' = '{value}'" for key, value in given.items())
    columns = "(id INT, city STRING, at BIGINT)"
    sql(
        f"CREATE TABLE s {columns} USING hudi PARTITIONED BY (city, at) TBLPROPERTIES ({properties})"
    )
    sql("INSERT INTO s VALUES (1, 'x', 1577836800000), (2, 'y', 1577836800000)")
    assert sql("SHOW PARTITIONS s") == [("city=x/at=2020-01",), ("city=y/at=2020-01",)]
    sql("INSERT OVERWRITE s PARTITION (city = 'x', at = 1577923200000) SELECT 3")
    sql("ALTER TABLE s DROP PARTITION (city = 'y', at = '2020-01')")
    assert sql("SELECT id FROM s") == [(3,)]


def test_a_misspelled_table_property_is_reported(sql: Sql) -> None:
    with pytest.warns(UserWarning, match="did you mean preCombineField"):
        sql(
            "CREATE TABLE s (id INT, ts INT) USING hudi TBLPROPERTIES (preCombine = 'ts', note = 'x')"
        )


def test_columns_that_may_not_be_null_are_reported(sql: Sql) -> None:
    with pytest.warns(UserWarning, match=r"NOT NULL has no effect.*: \['v'\]"):
        sql(
            "CREATE TABLE s (id INT NOT NULL, v INT NOT NULL) USING hudi "
            "TBLPROPERTIES (primaryKey = 'ID')"
        )


def test_partitions_are_shown_dropped_and_truncated(spark: Any, sql: Sql, stays: str) -> None:
    assert sql("SHOW PARTITIONS stays") == [("city=oslo",), ("city=rome",)]
    assert sql("SHOW PARTITIONS stays PARTITION (city = 'oslo')") == [("city=oslo",)]
    with pytest.warns(UserWarning, match=r"have no rows.*\['city=bern'\]"):
        sql("ALTER TABLE stays DROP PARTITION (city = 'oslo'), PARTITION (city = 'bern')")
    assert sql("SELECT id FROM stays") == [("a",)]
    sql("ALTER TABLE stays DROP IF EXISTS PARTITION (city = 'bern')")
    sql("TRUNCATE TABLE stays")
    assert sql("SELECT count(*) FROM stays") == [(0,)]


def test_a_renamed_table_keeps_its_rows_and_fixed_properties_stay(
    spark: Any, sql: Sql, stays: str
) -> None:
    sql("ALTER TABLE stays RENAME TO nights")
    assert sql("SELECT count(*) FROM nights") == [(3,)]
    assert not spark.catalog.tableExists("stays")
    sql("ALTER TABLE nights SET TBLPROPERTIES ('hoodie.clean.commits.retained' = '7')")
    with hoodoo.spark.table(spark, "nights") as table:
        assert table.properties["hoodie.clean.commits.retained"] == "7"
    with pytest.raises(InvalidInputError, match="primaryKey"):
        sql("ALTER TABLE nights SET TBLPROPERTIES (primaryKey = 'fare')")
    assert ("primaryKey", "id") in sql("SHOW TBLPROPERTIES nights")
    assert "USING hudi" in sql("SHOW CREATE TABLE nights")[0][0]


def test_an_external_table_is_found_and_its_files_stay(
    spark: Any, sql: Sql, save: Any, path: str, rows: Any
) -> None:
    save([(1, "mon", 1, 1.0)])
    sql(f"CREATE TABLE orders USING hudi LOCATION '{path}'")
    sql("UPDATE orders SET amount = 2.5")
    assert rows() == [(1, "mon", 1, 2.5)]
    spaced = Path(path).parent / "größe (1) %20"
    own = spark.table("orders").schema[5:]
    assert (
        spark.catalog.createTable("spaced", str(spaced), "hudi", own, primaryKey="id").count() == 0
    )
    sql("INSERT INTO spaced SELECT * FROM orders")
    spark.catalog.refreshTable("spaced")
    assert sql("SELECT id FROM spaced") == [(1,)]
    assert (spaced / ".hoodie").is_dir()
    with pytest.raises(InvalidInputError, match="and use this DataFrame"):
        spark.catalog.cacheTable("spaced")
    with pytest.raises(InvalidInputError, match="not those of the Hudi table"):
        sql(f"CREATE TABLE other (x INT) USING hudi LOCATION '{path}'")
    sql("DROP TABLE orders")
    assert rows() == [(1, "mon", 1, 2.5)]
    with pytest.raises(TableNotFoundError):
        spark.read.format("hudi").load("file:/nowhere/orders")


def test_indexes_are_created_shown_and_dropped(spark: Any, sql: Sql) -> None:
    sql(
        f"CREATE TABLE stays {COLUMNS} USING hudi TBLPROPERTIES (primaryKey = 'id', "
        "'hoodie.metadata.enable' = 'true')"
    )
    sql("INSERT INTO stays VALUES ('a', 1, 1, 'rome'), ('b', 2, 2, 'oslo')")
    sql("CREATE INDEX keys ON stays (id)")
    sql("CREATE INDEX cities ON stays (city)")
    shown = {(row[1], row[2]) for row in sql("SHOW INDEXES FROM stays")}
    assert ("secondary_index", "city") in shown
    assert ("record_index", "") in shown
    sql("DROP INDEX cities ON stays")
    sql("DROP INDEX IF EXISTS cities ON stays")
    assert "secondary_index" not in {row[1] for row in sql("SHOW INDEXES FROM stays")}
    with pytest.raises(InvalidInputError, match="expression index"):
        sql("CREATE INDEX hours ON stays USING column_stats(ts) OPTIONS (expr = 'hour')")


def test_procedures_show_commits_savepoints_and_properties(
    spark: Any, sql: Sql, stays: str
) -> None:
    sql("UPDATE stays SET fare = 9 WHERE id = 'a'")
    shown = spark.sql("CALL show_commits(table => 'stays', limit => 10)")
    assert shown.columns[:3] == ["commit_time", "state_transition_time", "action"]
    newest, oldest = (row.commit_time for row in shown.collect())
    assert newest > oldest
    for around in ("system", "hudi", "hudi.system"):
        assert len(sql(f"CALL {around}.show_commits('stays', 1)")) == 1
    with hoodoo.spark.table(spark, stays) as table:
        assert len(sql(f"CALL show_commits(path => '{table.path}')")) == 2
    with pytest.raises(InvalidInputError, match="whole number"):
        sql("CALL show_commits(table => 'stays', limit => 'many')")
    assert ("hoodie.table.recordkey.fields", "id") in sql(
        "CALL show_table_properties(table => 'stays', limit => 100)"
    )
    assert sql(f"CALL create_savepoint(table => 'stays', commit_time => '{oldest}')") == [(True,)]
    assert sql("CALL show_savepoints(table => 'stays')") == [(oldest,)]
    assert sql(f"CALL rollback_to_savepoint(table => 'stays', instant_time => '{oldest}')") == [
        (True,)
    ]
    assert sql("SELECT fare FROM stays WHERE id = 'a'") == [(1,)]
    assert sql("CALL delete_savepoint(table => 'stays')") == [(True,)]
    sql("DELETE FROM stays WHERE id = 'b'")
    last = hoodoo.spark.last_result(spark).requested_time
    assert sql(f"CALL rollback_to_instant(table => 'stays', instant_time => '{last}')") == [(True,)]
    assert sql("SELECT count(*) FROM stays") == [(3,)]
    shown = spark.sql("CALL show_timeline(table => 'stays')").collect()
    assert {"commit", "rollback", "restore"} <= {row.action for row in shown}
    undone = [row.rollback_info for row in shown if row.action == "rollback"]
    assert f"Rolled back: {last}" in undone
    only = sql("CALL show_timeline(table => 'stays', filter => \"action = 'restore'\")")
    assert len(only) == 1
    with pytest.raises(InvalidInputError, match="filter is no condition"):
        sql("CALL show_timeline(table => 'stays', filter => 'nope = 1')")
    (row,) = sql("CALL show_rollbacks(table => 'stays', limit => 1)")
    assert row[1] == last
    assert sql(f"CALL show_rollback_detail(table => 'stays', instant_time => '{row[0]}')")
    files = spark.sql(f"CALL show_commit_files(table => 'stays', instant_time => '{oldest}')")
    sizes = {row.file_id: row.file_size for row in files.collect()}
    latest = spark.sql("CALL show_fsview_latest(table => 'stays')").collect()
    assert sizes == {row.file_id: row.data_file_size for row in latest}
    with pytest.raises(InvalidInputError, match="TIMESTAMP AS OF"):
        sql("CALL show_fsview_all(table => 'stays', max_instant => '2020')")


def test_procedures_copy_rows_and_build_the_metadata_table(
    spark: Any, sql: Sql, stays: str
) -> None:
    begin = sql("CALL show_commits(table => 'stays')")[0][0]
    sql("DELETE FROM stays WHERE id = 'a'")
    sql(f"CALL copy_to_table(table => 'stays', new_table => 'old', as_of_instant => '{begin}')")
    try:
        assert len(sql("SELECT * FROM old")) == 3
    finally:
        sql("DROP TABLE old")
    sql("CALL copy_to_temp_view(table => 'stays', view_name => 'kept', replace => true)")
    assert sql("SELECT id FROM kept") == [("b",), ("c",)]
    assert "files" in sql("CALL create_metadata_table(table => 'stays')")[0][0]
    (name,) = sql("CALL show_metadata_table_files(table => 'stays', partition => 'city=oslo')")[-1]
    assert name.endswith(".parquet")
    assert sql("CALL validate_metadata_table_files(table => 'stays')") == []
    told = sql("CALL validate_metadata_table_files(table => 'stays', verbose => true)")
    assert {row[2:4] for row in told} == {(True, True)}
    assert "files" in sql("CALL delete_metadata_table(table => 'stays')")[0][0]
    with pytest.raises(InvalidInputError, match="no metadata table"):
        sql("CALL show_metadata_table_partitions(table => 'stays')")
    assert sql("CALL run_ttl(table => 'stays', retain_days => 30)") == []
    assert sql("CALL archive_commits(table => 'stays')") == [(0,)]


def test_procedures_run_services(spark: Any, sql: Sql) -> None:
    sql(f"CREATE TABLE stays {COLUMNS} USING hudi TBLPROPERTIES (primaryKey = 'id', type = 'mor')")
    sql("INSERT INTO stays VALUES ('a', 1, 1, 'rome'), ('b', 2, 2, 'oslo')")
    sql("UPDATE stays SET fare = 9 WHERE id = 'a'")
    planned = sql("CALL run_compaction(op => 'schedule', table => 'stays')")
    assert [row[2] for row in planned] == ["REQUESTED"]
    done = sql("CALL run_compaction(op => 'run', table => 'stays')")
    assert [(row[0], row[2]) for row in done] == [(planned[0][0], "COMPLETED")]
    assert [row[0] for row in sql("CALL show_compaction(table => 'stays')")] == [planned[0][0]]
    sql("INSERT INTO stays VALUES ('c', 3, 3, 'rome')")
    assert len(sql("CALL run_clustering(table => 'stays', order => 'fare')")) <= 1
    clean = (
        "CALL run_clean(table => 'stays', clean_policy => 'KEEP_LATEST_FILE_VERSIONS', "
        "file_versions_retained => 1, trigger_max_commits => {})"
    )
    assert sql(clean.format(90)) == []
    assert [row[2] > 0 for row in sql(clean.format(2))] == [True]
    with pytest.raises(InvalidInputError, match="hoodoo table upgrade"):
        sql("CALL upgrade_table(table => 'stays')")
    with pytest.raises(InvalidInputError, match="no such procedure"):
        sql("CALL frobnicate(table => 'stays')")
    with pytest.raises(InvalidInputError, match="no argument 'tabel'"):
        sql("CALL show_commits(tabel => 'stays')")
    with pytest.raises(HoodooError, match="no Hudi table has this name"):
        sql("CALL show_commits(table => 'nowhere')")


def test_each_procedure_of_hudi_is_in_the_docs_and_each_named_command_exists() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "sql.md").read_text()
    missing = [name for name in (*PROCEDURES, *REFUSED_PROCEDURES) if f"`{name}`" not in page]
    assert missing == []
    texts = (*REFUSED_PROCEDURES.values(), *re.findall("`(hoodoo [^`]+)`", page))
    named = {found for one in texts for found in re.findall("hoodoo ([a-z -]+) TABLE", one)}
    assert len(named) > 8
    for words in map(str.split, named):
        command: Any = main
        while words and isinstance(command, click.Group):
            command = command.get_command(click.Context(command), words.pop(0))
        assert isinstance(command, click.Command), named
        assert not isinstance(command, click.Group), named


def test_dataframes_are_saved_inserted_and_read_by_name(spark: Any, sql: Sql) -> None:
    two = spark.createDataFrame(
        [("a", 1, "rome"), ("b", 2, "oslo")], "id string, fare int, city string"
    )
    options = {"hoodie.datasource.write.recordkey.field": "id"}
    two.write.format("hudi").options(**options).partitionBy("city").saveAsTable("stays")
    with pytest.raises(InvalidInputError, match="has this name"):
        two.write.format("hudi").saveAsTable("stays")
    more = two.selectExpr("upper(id) id", "fare + 10 fare", "city")
    more.write.format("hudi").mode("append").saveAsTable("stays")
    with pytest.raises(InvalidInputError, match="partitioned by columns"):
        two.writeTo("daily").using("hudi").partitionedBy(F.days("fare"))
    two.selectExpr("'x'", "7", "city").where("city = 'rome'").write.insertInto("stays")
    assert sql("SELECT id FROM stays") == [("A",), ("B",), ("a",), ("b",), ("x",)]
    more.where("city = 'oslo'").writeTo("stays").overwritePartitions()
    more.selectExpr("city", "5 as fare", "'z' as id").limit(1).writeTo("stays").append()
    assert sql("SELECT id, fare FROM stays WHERE city = 'oslo'") == [("B", 12)]
    assert spark.read.table("stays").where("id = 'z'").count() == 1
    two.writeTo("nights").using("hudi").tableProperty("primaryKey", "id").create()
    assert spark.table("nights").count() == 2
    taxed = more.selectExpr("*", "1 AS tax")
    taxed.write.format("hudi").mode("append").saveAsTable("nights")
    assert "tax" in [one.name for one in spark.catalog.listColumns("nights")]
    assert {name for _, name, _ in sql("SHOW TABLES")} >= {"stays", "nights"}
    two.write.format("parquet").saveAsTable("plain")
    with pytest.raises(InvalidInputError, match="another format"):
        two.write.format("hudi").mode("overwrite").saveAsTable("plain")


def test_a_merge_of_dataframes_has_the_clauses_of_the_local_one(
    spark: Any, sql: Sql, stays: str
) -> None:
    news = spark.createDataFrame(
        [("a", 50, 9, "rome"), ("c", 0, 9, "oslo"), ("z", 7, 9, "bern")],
        "id string, fare int, ts long, city string",
    )
    with hoodoo.spark.table(spark, stays) as table:
        result = (
            table.merge(news, "target.id = source.id")
            .when_matched_delete("source.fare = 0")
            .when_matched_update({"fare": "target.fare + source.fare", "ts": "source.ts"})
            .when_not_matched_insert_all()
            .when_not_matched_by_source_update({"fare": "-target.fare"})
            .execute()
        )
        assert (result.rows_inserted, result.rows_updated, result.rows_deleted) == (1, 2, 1)
        table.update("id = 'z'", {"city": "city", "fare": "fare * 2"})
        table.delete("fare < 0")
    assert sql("SELECT id, fare FROM stays") == [("a", 51), ("z", 14)]


def test_statements_on_what_spark_keeps_have_nothing_to_do_or_are_refused(
    spark: Any, sql: Sql, stays: str
) -> None:
    for text in (
        "REFRESH TABLE stays",
        "UNCACHE TABLE stays",
        "ANALYZE TABLE stays COMPUTE STATISTICS",
    ):
        sql(text)
    for text in (
        "CACHE TABLE stays",
        "ANALYZE TABLE stays PARTITION (city = 'oslo') COMPUTE STATISTICS",
        "DESCRIBE stays PARTITION (city = 'oslo')",
        "CREATE TABLE other LIKE stays",
        "ALTER TABLE stays SET SERDEPROPERTIES ('a' = 'b')",
        "ALTER TABLE stays ADD COLUMNS (age INT NOT NULL)",
        "CREATE TABLE other (id INT, age INT DEFAULT id) USING hudi",
        "CREATE TABLE other (id INT, age INT DEFAULT 'old') USING hudi",
        "CREATE TABLE other (id INT, names ARRAY<VARCHAR(3)>) USING hudi",
        "CREATE TABLE other (id INT, time INTERVAL) USING hudi",
        "CREATE TABLE other USING hudi AS SELECT 1 AS id, make_interval(1) AS time",
        "CREATE TABLE other (id INT) USING hudi PARTITIONED BY (days(ts))",
        "ALTER TABLE stays ADD COLUMNS (age INT DEFAULT 3)",
        "ALTER TABLE stays ALTER COLUMN fare SET DEFAULT 'many'",
        "ALTER TABLE stays ALTER COLUMN nope SET DEFAULT 3",
        "ALTER TABLE stays ALTER COLUMN city SET DEFAULT 'rome'",
        "CREATE TABLE other (id INT, city STRING DEFAULT 'a') USING hudi PARTITIONED BY (city)",
        "ALTER TABLE stays ALTER COLUMN city TYPE VARCHAR(3)",
        "SELECT * FROM hudi_query_timeline('stays')",
    ):
        with pytest.raises(InvalidInputError):
            sql(text)
    assert ("ts",) in sql("SHOW COLUMNS FROM stays")


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("OPTIMIZE stays ZORDER BY (id)", "run_clustering"),
        ("VACUUM stays RETAIN 168 HOURS", "run_clean"),
        ("RESTORE TABLE stays TO VERSION AS OF 1", "rollback_to_savepoint"),
        ("INSERT INTO stays REPLACE WHERE city = 'rome' SELECT * FROM stays", "INSERT OVERWRITE"),
        ("DESCRIBE HISTORY stays", "show_commits"),
        ("CALL system.expire_snapshots(table => 'stays')", "CALL run_clean"),
        ("CALL show_commit(table => 'stays')", "did you mean show_commits"),
        ("DESC DETAIL stays", "show_table_properties"),
        ("CREATE TABLE other SHALLOW CLONE stays", "AS SELECT"),
        ("ALTER TABLE stays ADD CONSTRAINT paid CHECK (fare > 0)", "assert_true"),
        ("ALTER TABLE stays DROP CONSTRAINT IF EXISTS paid", "assert_true"),
    ],
)
def test_statements_of_other_formats_name_the_way_of_hudi(
    sql: Sql, stays: str, text: str, instead: str
) -> None:
    with pytest.raises(InvalidInputError, match=instead):
        sql(text)


def test_comments_of_tables_and_columns_stay_in_the_catalog(spark: Any, sql: Sql) -> None:
    sql("CREATE TABLE stays (id STRING COMMENT 'key', fare INT) USING hudi COMMENT 'nights'")
    sql("ALTER TABLE stays ADD COLUMNS (note STRING COMMENT 'free text')")
    sql("ALTER TABLE stays ALTER COLUMN fare COMMENT 'EUR'")
    sql("ALTER TABLE stays CHANGE COLUMN note note STRING COMMENT 'words'")
    told = {row[0]: row[2] for row in spark.sql("DESCRIBE stays").collect()}
    assert (told["id"], told["fare"], told["note"]) == ("key", "EUR", "words")
    sql("COMMENT ON TABLE stays IS 'stays of guests'")
    assert ("Comment", "stays of guests") in [
        (row[0], row[1]) for row in spark.sql("DESCRIBE EXTENDED stays").collect()
    ]


def test_defaults_and_lengths_of_columns_stay_in_the_catalog_and_are_followed(
    spark: Any, sql: Sql
) -> None:
    sql(
        "CREATE TABLE stays (id INT, city VARCHAR(4) DEFAULT 'rome', code CHAR(3), fare DOUBLE "
        "DEFAULT 1.5 + 1, day DATE) USING hudi TBLPROPERTIES (primaryKey = 'id')"
    )
    told = {row[0]: row[1] for row in spark.sql("DESCRIBE stays").collect()}
    assert (told["city"], told["code"]) == ("varchar(4)", "char(3)")
    sql("INSERT INTO stays (id, code) VALUES (1, 'a')")
    sql("INSERT INTO stays VALUES (2, DEFAULT, 'b', DEFAULT, DEFAULT), (3, 'bern', 'c  ', 9, NULL)")
    sql("INSERT INTO stays SELECT 4, DEFAULT, 'dd', DEFAULT, DATE'2024-01-01'")
    sql(
        "MERGE INTO stays t USING (SELECT explode(array(3, 5)) id) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET fare = DEFAULT WHEN NOT MATCHED THEN INSERT (id) VALUES (id)"
    )
    own = "SELECT id, city, code, fare FROM stays"
    rows = [
        (1, "rome", "a  ", 2.5),
        (2, "rome", "b  ", 2.5),
        (3, "bern", "c  ", 2.5),
        (4, "rome", "dd ", 2.5),
        (5, "rome", None, 2.5),
    ]
    assert sql(own) == rows
    sql("UPDATE stays SET city = 'x   ', fare = 0 WHERE code = 'dd'")
    assert sql(f"{own} WHERE code = 'dd'") == [(4, "x   ", "dd ", 0.0)]
    long = "SELECT 6 id, 'berlin' city, 'a' code, 0D fare, NULL day"
    for text in (
        f"INSERT INTO stays {long}",
        "UPDATE stays SET code = 'long' WHERE id = 1",
        f"MERGE INTO stays t USING ({long}) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *",
    ):
        with pytest.raises(InvalidInputError, match=r"EXCEED_LIMIT_LENGTH.*\b[34]\b"):
            sql(text)
    sql("ALTER TABLE stays ALTER COLUMN city SET DEFAULT 'oslo'")
    sql("ALTER TABLE stays ALTER COLUMN fare DROP DEFAULT")
    sql("ALTER TABLE stays ALTER COLUMN code COMMENT 'short'")
    sql("ALTER TABLE stays ADD COLUMNS (note VARCHAR(2))")
    spark.range(6, 7).selectExpr("CAST(id AS INT) id", "'no' note").writeTo("stays").append()
    assert sql(f"{own} WHERE note = 'no'") == [(6, "oslo", None, None)]
    told = {row[0]: row[1:] for row in spark.sql("DESCRIBE stays").collect()}
    assert (told["note"][0], told["code"]) == ("varchar(2)", ("char(3)", "short"))
    sql("SET hoodie.schema.on.read.enable=true")
    try:
        sql("ALTER TABLE stays RENAME COLUMN city TO place")
        sql("ALTER TABLE stays ALTER COLUMN note TYPE STRING")
    finally:
        spark.conf.unset("hoodie.schema.on.read.enable")
    sql("INSERT INTO stays (id, note) VALUES (7, 'longer')")
    assert sql("SELECT place, note FROM stays WHERE id = 7") == [("oslo", "longer")]


def test_help_tells_the_procedures_and_call_takes_parameters(
    spark: Any, sql: Sql, stays: str
) -> None:
    lines = [row[0] for row in sql("CALL help()")]
    assert len(lines) > 15
    (line,) = (row[0] for row in sql("CALL help(cmd => 'show_commits')"))
    assert line in lines
    assert line.startswith("show_commits(table, limit = 10, path): commit_time string")
    with pytest.raises(InvalidInputError, match="no such procedure"):
        sql("CALL help('frobnicate')")
    text = "CALL show_commits(table => :name, limit => :count)"
    assert spark.sql(text, {"name": "stays", "count": 1}).count() == 1


def test_a_view_of_a_path_keeps_its_snapshot_until_it_is_refreshed(
    spark: Any, sql: Sql, stays: str
) -> None:
    with hoodoo.spark.table(spark, stays) as table:
        where = table.path
    sql(f"CREATE TEMPORARY VIEW then USING hudi OPTIONS (path '{where}')")
    loaded = spark.read.format("hoodoo").load(where)
    loaded.createOrReplaceTempView("seen")
    loaded.createOrReplaceTempView("replaced")
    sql("CREATE OR REPLACE TEMPORARY VIEW replaced AS SELECT 'z' AS id")
    sql("DELETE FROM stays WHERE city = 'oslo'")
    for view in ("then", "seen"):
        assert sql(f"SELECT id FROM {view}") == [("a",), ("b",), ("c",)]
    sql("REFRESH TABLE Then")
    sql("REFRESH TABLE replaced")
    spark.catalog.refreshTable("seen")
    left = sql("SELECT id FROM stays")
    assert len(left) < 3
    for view in ("then", "seen"):
        assert sql(f"SELECT id FROM {view}") == left
    assert sql("SELECT id FROM replaced") == [("z",)]
    for view in ("then", "seen", "replaced"):
        spark.catalog.dropTempView(view)
