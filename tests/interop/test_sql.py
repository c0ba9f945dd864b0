"""SQL of Hudi 1.2 and of hoodoo agree, in one Spark 3.5 session with the metadata table on."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import hoodoo
from hoodoo.configuration import Layers
from hoodoo.spark.sql.procedures import PROCEDURES, REFUSED_PROCEDURES
from hoodoo.verify.verify import verify_at
from tests.interop.java import BUNDLE, set_up_both

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).parent / "oracles" / "sql_turns.py"
KEYED = "TBLPROPERTIES (primaryKey = 'id', type = '{kind}')"
CREATE = (
    "CREATE TABLE {t} (id INT, name STRING, price DOUBLE, ts BIGINT, dt STRING) USING hudi "
    "TBLPROPERTIES (primaryKey = 'id', preCombineField = 'ts', type = '{kind}') "
    "PARTITIONED BY (dt) LOCATION '{path}'"
)
UPSERT = "SET hoodie.spark.sql.insert.into.operation=upsert"
NEWS = (
    "(SELECT 2 id, 'd' flag, 30L ts, 'x' dt UNION ALL SELECT 3, 'u', 30L, 'y' "
    "UNION ALL SELECT 9, 'i', 30L, 'z')"
)
BEGIN = [
    CREATE,
    "INSERT INTO {t} VALUES (1,'a1',10,1,'x'),(2,'a2',20,1,'x'),(3,'a3',30,1,'y')",
    "INSERT INTO {t} VALUES (4,'a4',40,1,'y'),(5,'a5',50,1,'z')",
]
INSERTS = [
    "INSERT INTO {t} PARTITION (dt='z') SELECT 6,'a6',60,1",
    "INSERT INTO {t} (dt, id, ts) VALUES ('x', 7, 1)",
    UPSERT,
    "INSERT INTO {t} SELECT 7, 'a7', 70, 2, 'x'",
    "INSERT INTO {t} VALUES (1,'old',0,0,'x'),(2,'A2',21,2,'x')",
    "INSERT INTO {t} WITH s AS (SELECT 20 id) SELECT id, 'w20', 1, 1, 'x' FROM s",
]
CHANGES = [
    "UPDATE {t} SET price = price * 2, ts = ts + 1 WHERE dt = 'x'",
    "UPDATE {t} SET name = upper(name) WHERE id IN (SELECT id FROM {t} WHERE price > 45)",
    "UPDATE {t} SET price = CASE WHEN id = 3 THEN NULL ELSE 1 END WHERE dt = 'y'",
    "UPDATE {t} SET price = price + 1, ts = ts + 1",
    "DELETE FROM {t} WHERE id = 4",
    "UPDATE {t} SET price = 5 WHERE id = :id",
    "DELETE FROM {t} WHERE price > (SELECT avg(price) + 50 FROM {t})",
    "DELETE FROM {t} WHERE EXISTS (SELECT 1 FROM {t} o WHERE o.id = 20 AND o.id = {t}.id)",
]
UPSERT_MERGE = (
    "MERGE INTO {t} t USING (SELECT 2 id, 'm2' name, 5D price, 9L ts, 'x' dt UNION ALL "
    "SELECT 8,'m8',8D,9L,'y') s ON t.id = s.id "
    "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
)
CLAUSES_MERGE = (
    f"MERGE INTO {{t}} t USING {NEWS} s ON t.id = s.id AND t.dt = s.dt "
    "WHEN MATCHED AND s.flag = 'd' THEN DELETE "
    "WHEN MATCHED AND s.flag = 'u' THEN UPDATE SET name = concat(t.name, s.flag), price = 7, "
    "ts = s.ts WHEN NOT MATCHED THEN INSERT (id, name, price, ts, dt) "
    "VALUES (s.id, s.flag, 0, s.ts, s.dt)"
)
MERGES = [
    (
        "MERGE INTO {t} t USING (SELECT 8 id, 11L ts, 'y' dt) s ON t.id = s.id AND t.dt = s.dt "
        "WHEN MATCHED THEN UPDATE SET price = t.price + 0.5, ts = s.ts"
    ),
    (
        "MERGE INTO {t} t USING (SELECT 10 id, 'n' name, 1D price, 1L ts, 'w' dt UNION ALL "
        "SELECT 1,'no',0D,99L,'x') s ON t.id = s.id WHEN NOT MATCHED AND s.id > 5 THEN INSERT *"
    ),
    (
        "MERGE INTO {t} t USING (SELECT 10 id, 2L ts, 'w' dt) s ON t.id = s.id AND t.dt = s.dt "
        "WHEN MATCHED THEN DELETE"
    ),
    (
        "MERGE INTO {t} t USING (WITH c AS (SELECT 21 id, 'c21' name, 1D price, 1L ts, 'x' dt) "
        "SELECT * FROM c) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *"
    ),
    (
        "WITH c AS (SELECT 22 id, 'c22' name, 1D price, 1L ts, 'x' dt) MERGE INTO {t} t USING c "
        "ON t.id = c.id WHEN NOT MATCHED THEN INSERT *"
    ),
    "WITH c AS (SELECT 22 id) DELETE FROM {t} WHERE id IN (SELECT id FROM c)",
    (
        "MERGE INTO {t} t USING (SELECT 21 id, 5L ts, 'x' dt) s ON t.id = s.id AND t.dt = s.dt "
        "WHEN MATCHED THEN UPDATE SET price = 2, ts = s.ts "
        "WHEN NOT MATCHED BY SOURCE AND t.dt = 'y' THEN DELETE"
    ),
]
QUERIES = [
    "SELECT dt, count(*), sum(price) FROM {t} GROUP BY dt",
    "SELECT id, name, dt FROM {t} TIMESTAMP AS OF '{first}'",
    "SELECT name FROM {t} WHERE id = :id",
    "SELECT id, name, price FROM hudi_table_changes('{t}', 'latest_state', '{first}')",
    "SELECT id, name, price FROM hudi_table_changes('{t}', 'latest_state', 'earliest')",
    "SELECT id, name, price FROM hudi_query('{t}', 'snapshot')",
    "SELECT id, name, price FROM hudi_query('{t}', 'read_optimized')",
    "SHOW PARTITIONS {t}",
    "SHOW PARTITIONS {t} PARTITION (dt='x')",
    (
        "WITH w AS (SELECT * FROM {t} WHERE price > 5) "
        "SELECT a.id, b.name FROM w a JOIN {t} b ON a.id = b.id"
    ),
]
OVERWRITES = [
    "INSERT OVERWRITE {t} PARTITION (dt='z') SELECT 11,'o11',1,1",
    "SET hoodie.datasource.overwrite.mode=dynamic",
    "INSERT OVERWRITE {t} SELECT 12,'o12',1D,1L,'y'",
    "INSERT OVERWRITE {t} PARTITION (dt) SELECT 13,'o13',1D,1L,'w'",
    "SET hoodie.datasource.overwrite.mode=static",
]
ADDED_COLUMNS = [
    "ALTER TABLE {t} ADD COLUMNS (extra STRING, n INT)",
    "INSERT INTO {t} VALUES (14,'e14',14,1,NULL,NULL,'w')",
    "INSERT INTO {t} (id,name,price,ts,extra,n,dt) VALUES (15,'e15',15,1,'ex',5,'v')",
    "UPDATE {t} SET extra = 'set', n = id, ts = ts + 1 WHERE dt IN ('w','x')",
    (
        "MERGE INTO {t} t USING (SELECT 15 id, 'ee' extra, 9L ts, 'v' dt) s ON t.id = s.id AND "
        "t.dt = s.dt WHEN MATCHED THEN UPDATE SET extra = s.extra, ts = s.ts"
    ),
    "ALTER TABLE {t} DROP PARTITION (dt='z')",
    "DELETE FROM {t} WHERE extra IS NULL",
    "INSERT OVERWRITE {t} SELECT id, name, price, ts, extra, n, dt FROM {t} WHERE dt = 'v'",
    "INSERT OVERWRITE {t} PARTITION (dt) SELECT 16,'o16',1D,1L,NULL,1,'u'",
    "DELETE FROM {t}",
]
OTHER_TABLES = [
    f"CREATE TABLE {{u}} (id INT, name STRING, n INT) USING hudi {KEYED}",
    "INSERT INTO {u} VALUES (1,'a',1),(2,'b',2),(3,'c',3)",
    "INSERT INTO {u} VALUES (3,'C',4),(4,'d',5)",
    "UPDATE {u} SET n = n * 10 WHERE name > 'a'",
    (
        "MERGE INTO {u} u USING (SELECT 1 id, 'm' name, 0 n UNION ALL SELECT 9, 'n', 9) s "
        "ON u.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    ),
    "DELETE FROM {u} WHERE n BETWEEN 1 AND 20",
    "INSERT OVERWRITE {u} SELECT id + 1, name, n FROM {u}",
    "TRUNCATE TABLE {u}",
    "INSERT INTO {u} SELECT 5, 'e', 5",
    "DROP TABLE {u}",
    (
        "CREATE TABLE {k} (id INT, name STRING, dt STRING) USING hudi "
        "TBLPROPERTIES (type = '{kind}') PARTITIONED BY (dt)"
    ),
    "INSERT INTO {k} VALUES (1,'a','x'),(1,'a','x'),(2,'b','y')",
    "INSERT INTO {k} VALUES (3,'c','y')",
    "UPDATE {k} SET name = concat(name, '!') WHERE id = 1",
    "DELETE FROM {k} WHERE id = 2",
    (
        "MERGE INTO {k} k USING (SELECT 3 id, 'm' name, 'y' dt UNION ALL SELECT 7, 'n', 'z') s "
        "ON k.id = s.id WHEN MATCHED THEN UPDATE SET name = s.name WHEN NOT MATCHED THEN INSERT *"
    ),
    "TRUNCATE TABLE {k} PARTITION (dt='x')",
    "SHOW PARTITIONS {k}",
    (
        f"CREATE TABLE {{c}} USING hudi {KEYED} PARTITIONED BY (dt) AS SELECT 1 id, 'a' name, "
        "'x' dt UNION ALL SELECT 2, 'b', 'y'"
    ),
    "INSERT INTO {c} SELECT 3, 'c', 'x'",
    "INSERT OVERWRITE {c} PARTITION (dt = 'x') SELECT 4, 'd'",
    "CREATE TABLE {d} USING hudi AS SELECT id, name FROM {c}",
    "INSERT INTO {d} VALUES (8, 'h')",
    "SELECT * FROM {d} d JOIN {c} c ON d.id = c.id",
    "SHOW TBLPROPERTIES {c} (primaryKey)",
]
#: Java renames columns under their statistics; hoodoo wants them dropped before. Java renames and
#: drops columns only if a write may drop them.
CHANGED_COLUMNS = [
    (
        "CREATE TABLE {s} (id INT, name STRING, price INT) USING hudi TBLPROPERTIES "
        "(primaryKey = 'id', type = '{kind}', hoodie.metadata.index.column.stats.enable = 'false', "
        "hoodie.metadata.index.partition.stats.enable = 'false', "
        "hoodie.datasource.write.schema.allow.auto.evolution.column.drop = 'true')"
    ),
    "INSERT INTO {s} VALUES (1,'a',1),(2,'b',2)",
    "SET hoodie.schema.on.read.enable=true",
    "ALTER TABLE {s} ADD COLUMNS (more INT)",
    "INSERT INTO {s} VALUES (1,'A',7,5)",
    "ALTER TABLE {s} RENAME COLUMN more TO most",
    "UPDATE {s} SET most = id + 1",
    "ALTER TABLE {s} ALTER COLUMN price TYPE BIGINT",
    "UPDATE {s} SET price = 5000000000 WHERE id = 1",
    "ALTER TABLE {s} ALTER COLUMN most COMMENT 'the most'",
    "ALTER TABLE {s} SET TBLPROPERTIES (hoodie.keep.max.commits = '40')",
    "ALTER TABLE {s} DROP COLUMN name",
    "INSERT INTO {s} SELECT 22, 6000000000, 1",
    "ALTER TABLE {s} RENAME COLUMN price TO cost",
    "DELETE FROM {s} WHERE cost > 5500000000",
    "SET hoodie.schema.on.read.enable=false",
]
#: Java builds an index beside other writers, and asks for a lock.
INDEXES = [
    "SET hoodie.metadata.global.record.level.index.enable=true",
    "SET hoodie.write.lock.provider=org.apache.hudi.client.transaction.lock.InProcessLockProvider",
    "CREATE INDEX record_index ON {t} (id)",
    "CREATE INDEX by_name ON {t} (name)",
    "SHOW INDEXES FROM {t}",
    "UPDATE {t} SET name = 'other', ts = ts + 1 WHERE id = 3",
    "SELECT id FROM {t} WHERE name IN ('a1', 'other')",
    "DROP INDEX by_name ON {t}",
    "SHOW INDEXES FROM {t}",
    "RESET hoodie.write.lock.provider",
]
OF_ONE_WRITE = "table => '{t}', instant_time => '{last}'"
SHOWS = [
    "CALL show_commits(table => '{t}', limit => 100)",
    "CALL show_commits_metadata(table => '{t}', limit => 100)",
    f"CALL show_commit_files({OF_ONE_WRITE})",
    f"CALL show_commit_partitions({OF_ONE_WRITE})",
    f"CALL show_commit_write_stats({OF_ONE_WRITE})",
    f"CALL show_commit_extra_metadata({OF_ONE_WRITE})",
    "CALL stats_wa(table => '{t}')",
    "CALL show_timeline(table => '{t}')",
    "CALL show_fsview_all(table => '{t}', limit => 100)",
    "CALL show_fsview_latest(table => '{t}', limit => 100)",
    "CALL stats_file_sizes(table => '{t}', partition_path => '*', limit => 100)",
    "CALL show_metadata_table_partitions(table => '{t}')",
    "CALL show_metadata_table_files(table => '{t}', partition => 'dt=x')",
    "CALL show_metadata_table_column_stats(table => '{t}', targetColumns => 'price')",
    "CALL validate_metadata_table_files(table => '{t}', verbose => true)",
    "CALL show_table_properties(table => '{t}', limit => 100)",
]
#: A key in two partitions would fail the record index of Java. Neither engine rolls back a write
#: before a compaction. After a clustering, Java's session reads the older files until a refresh.
SERVICES = [
    "SET hoodie.compact.inline=false",
    "INSERT INTO {t} VALUES (30,'r',1,1,'x')",
    "CALL create_savepoint(table => '{t}')",
    "CALL show_savepoints(table => '{t}')",
    "INSERT INTO {t} VALUES (10,'r',1,1,'x')",
    "CALL rollback_to_savepoint(table => '{t}')",
    "CALL delete_savepoint(table => '{t}')",
    "INSERT INTO {t} VALUES (11,'r',1,1,'x')",
    "INSERT INTO {t} VALUES (12,'r',1,1,'x')",
    "CALL rollback_to_instant(table => '{t}', instant_time => '{last}')",
    "CALL show_rollbacks(table => '{t}')",
    "CALL show_timeline(table => '{t}')",
    "UPDATE {t} SET ts = ts + 1, price = price + 1",
    "UPDATE {t} SET ts = ts + 1, price = price + 1",
    "CALL run_clustering(table => '{t}', order => 'price')",
    "REFRESH TABLE {t}",
    "CALL show_clustering(table => '{t}')",
    "CALL run_compaction(op => 'schedule', table => '{t}')",
    "CALL run_compaction(op => 'run', table => '{t}')",
    "CALL show_compaction(table => '{t}')",
    "UPDATE {t} SET ts = ts + 1, price = price + 1",
    "CALL run_clean(table => '{t}', retain_commits => 1)",
    "CALL show_cleans(table => '{t}')",
    "CALL show_cleans_metadata(table => '{t}', limit => 100)",
    "CALL show_clean_plans(table => '{t}')",
    "CALL drop_partition(table => '{t}', partition => 'dt=y')",
    "CALL show_commits(table => '{t}', limit => 100)",
    "RESET hoodie.compact.inline",
]

ALL = [
    *BEGIN, *INSERTS, *QUERIES, *CHANGES, UPSERT_MERGE, CLAUSES_MERGE, *MERGES, *INDEXES, *SHOWS,
    *SERVICES, *OTHER_TABLES, *CHANGED_COLUMNS, *OVERWRITES, *ADDED_COLUMNS,
]  # fmt: skip
#: Those of CI: a minute instead of five.
SHORT = [
    *BEGIN, UPSERT, INSERTS[3], INSERTS[4], CHANGES[0], CHANGES[4], QUERIES[1], QUERIES[3],
    QUERIES[5], QUERIES[6], UPSERT_MERGE, CLAUSES_MERGE, MERGES[0], MERGES[2], *OVERWRITES[:3],
    OVERWRITES[4], *ADDED_COLUMNS[:2], ADDED_COLUMNS[3], ADDED_COLUMNS[4], ADDED_COLUMNS[7],
    ADDED_COLUMNS[9],
]  # fmt: skip

#: Columns whose values differ between the engines, by the beginning of a query.
OWN_COLUMNS = {
    # The moments of files there, those of the instants here: to the second, without the year.
    "CALL show_timeline": {"requested_time", "inflight_time", "completed_time"},
    "CALL show_fsview": {
        "data_file",  # with the scheme of the path there
        "delta_files",
        "delta_files_compaction_scheduled",
        "delta_files_compaction_unscheduled",
    },
}
DATE = re.compile(r"\d\d-\d\d \d\d:\d\d:\d\d")


@pytest.fixture(scope="module")
def python() -> Path:
    return set_up_both()


def outcomes(
    python: Path, folder: Path, statements: list[str], *, kind: str, first: int, apart: bool
) -> dict[str, Any]:
    """Run the statements in a session of their own."""
    if kind == "mor":  # Java's MERGE into such a table sets no expressions of its columns
        statements = [one.replace("t.price + 0.5", "8.5") for one in statements]
        statements = [one.replace("concat(t.name, s.flag)", "s.flag") for one in statements]
    task = {
        "jar": str(BUNDLE),
        "folder": str(folder),
        "apart": apart,
        "first": first,
        "statements": [one.replace("{kind}", kind) for one in statements],
    }
    done = subprocess.run(
        [python, SCRIPT, json.dumps(task)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": str(python)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compared(sql: str, rows: dict[str, Any]) -> dict[str, Any]:
    """Return the rows of both engines without the values in which they differ."""
    own = next((names for begin, names in OWN_COLUMNS.items() if sql.startswith(begin)), set())
    found = {}
    for side, (columns, values) in rows.items():
        kept = [at for at, name in enumerate(columns) if name not in own]
        if own == OWN_COLUMNS["CALL show_timeline"]:
            dates = [row[at] for row in values for at in range(len(row)) if columns[at] in own]
            assert all(one is None or DATE.fullmatch(one) for one in dates)
        own_rows = [[_rounded(row[at]) for at in kept] for row in values]
        found[side] = [columns, sorted(own_rows, key=str)]
    return found


def _rounded(value: Any) -> Any:
    """Return a value without the last digits of a sum, which its order decides."""
    return round(value, 6) if isinstance(value, float) else value


@pytest.mark.jvm
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(
    ("kind", "first", "apart", "statements"),
    [
        pytest.param("cow", 0, False, SHORT, id="cow-short"),
        pytest.param("cow", 1, False, ALL, id="cow-turns", marks=pytest.mark.slow),
        pytest.param("mor", 1, False, ALL, id="mor-turns", marks=pytest.mark.slow),
        pytest.param("mor", 0, False, ALL, id="mor-other-turns", marks=pytest.mark.slow),
        pytest.param("mor", 0, True, ALL, id="mor-apart", marks=pytest.mark.slow),
    ],
)
def test_java_and_hoodoo_lead_to_the_same_rows(
    python: Path, tmp_path: Path, kind: str, first: int, apart: bool, statements: list[str]
) -> None:
    if kind == "cow":  # both engines refuse to compact such a table
        statements = [one for one in statements if "compaction" not in one]
    if apart:  # the times, the names and the rows of files differ
        of_files = re.compile("CALL (show|stats|validate)_|'read_optimized'")
        statements = [one for one in statements if not of_files.search(one)]
        # Java does nothing for this clause.
        statements = [one.partition(" WHEN NOT MATCHED BY SOURCE")[0] for one in statements]
    answer = outcomes(python, tmp_path, statements, kind=kind, first=first, apart=apart)
    found = answer["found"]
    assert len(found) == len(statements)
    wrong = []
    for one in found:
        rows = compared(one["sql"], one["rows"])
        if one["errors"] or (rows and rows["java"] != rows["ours"]):
            wrong.append({**one, "rows": rows})
    assert not wrong, "\n".join(json.dumps(one) for one in wrong)
    assert max(len(one["rows"]["java"][1]) for one in found if one["rows"]) >= 5
    for path in tmp_path.glob("*/.hoodie"):
        with hoodoo.open_table(path.parent) as table:
            assert table.metadata.verify() == ()
        assert verify_at(path.parent, Layers()).problems == ()
    check_procedures(answer["procedures"])


def check_procedures(java: dict[str, Any]) -> None:
    """Compare the arguments and columns of the procedures; each one is served or refused."""
    assert java.keys() == PROCEDURES.keys() | REFUSED_PROCEDURES.keys() | {"help"}
    types = {"long": "bigint"}
    for name, one in PROCEDURES.items():
        fields = [column.split(" ") for column in one.columns.split(", ")]
        shape = ",".join(f"{column}:{types.get(kind, kind)}" for column, kind in fields)
        assert f"struct<{shape}>" == java[name]["columns"], name
        assert [*one.arguments] == [each.lower() for each in java[name]["arguments"]], name
