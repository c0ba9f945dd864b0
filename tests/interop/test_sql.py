"""SQL of Hudi 1.2 and of hoodoo agree, in one Spark 3.5 session with the metadata table on."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import hoodoo
from hoodoo.configuration import Layers
from hoodoo.verify.verify import verify_at
from tests.interop.java import BUNDLE, set_up_both

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).parent / "oracles" / "sql_turns.py"
CREATE = (
    "CREATE TABLE {t} (id INT, name STRING, price DOUBLE, ts BIGINT, dt STRING) USING hudi "
    "TBLPROPERTIES (primaryKey = 'id', preCombineField = 'ts', type = '%s') PARTITIONED BY (dt) "
    "LOCATION '{path}'"
)
UPSERT = "SET hoodie.spark.sql.insert.into.operation=upsert"
NEWS = (
    "(SELECT 2 id, 'd' flag, 30L ts, 'x' dt UNION ALL SELECT 3, 'u', 30L, 'y' "
    "UNION ALL SELECT 9, 'i', 30L, 'z')"
)
STATEMENTS = [
    "INSERT INTO {t} VALUES (1,'a1',10,1,'x'),(2,'a2',20,1,'x'),(3,'a3',30,1,'y')",
    "INSERT INTO {t} VALUES (4,'a4',40,1,'y'),(5,'a5',50,1,'z')",
    "INSERT INTO {t} PARTITION (dt='z') SELECT 6,'a6',60,1",
    "INSERT INTO {t} (dt, id, ts) VALUES ('x', 7, 1)",
    UPSERT,
    "INSERT INTO {t} SELECT 7, 'a7', 70, 2, 'x'",
    "INSERT INTO {t} VALUES (1,'old',0,0,'x'),(2,'A2',21,2,'x')",
    "UPDATE {t} SET price = price * 2, ts = ts + 1 WHERE dt = 'x'",
    "UPDATE {t} SET name = upper(name) WHERE id IN (SELECT id FROM {t} WHERE price > 45)",
    "UPDATE {t} SET price = CASE WHEN id = 3 THEN NULL ELSE 1 END WHERE dt = 'y'",
    "DELETE FROM {t} WHERE id = 4",
    "DELETE FROM {t} WHERE price > (SELECT avg(price) + 50 FROM {t})",
    (
        "MERGE INTO {t} t USING (SELECT 2 id, 'm2' name, 5D price, 9L ts, 'x' dt UNION ALL "
        "SELECT 8,'m8',8D,9L,'y') s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    ),
    (
        f"MERGE INTO {{t}} t USING {NEWS} s ON t.id = s.id AND t.dt = s.dt "
        "WHEN MATCHED AND s.flag = 'd' THEN DELETE "
        "WHEN MATCHED AND s.flag = 'u' THEN UPDATE SET name = concat(t.name, s.flag), price = 7, "
        "ts = s.ts WHEN NOT MATCHED THEN INSERT (id, name, price, ts, dt) "
        "VALUES (s.id, s.flag, 0, s.ts, s.dt)"
    ),
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
    "INSERT OVERWRITE {t} PARTITION (dt='z') SELECT 11,'o11',1,1",
    "SET hoodie.datasource.overwrite.mode=dynamic",
    "INSERT OVERWRITE {t} SELECT 12,'o12',1D,1L,'y'",
    "INSERT OVERWRITE {t} PARTITION (dt) SELECT 13,'o13',1D,1L,'w'",
    "SET hoodie.datasource.overwrite.mode=static",
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

#: Statements of the slow runs only.
MORE = frozenset({2, 3, 8, 9, 11, 15, 20, 24, 27, 28, 30})


@pytest.fixture(scope="module")
def python() -> Path:
    return set_up_both()


def outcomes(
    python: Path, folder: Path, statements: list[str], kind: str, mode: str, first: int
) -> list[dict[str, Any]]:
    """Run the statements in a session of their own."""
    if kind == "mor":  # Java's MERGE into such a table sets no expressions of its columns
        statements = [one.replace("t.price + 0.5", "8.5") for one in statements]
        statements = [one.replace("concat(t.name, s.flag)", "s.flag") for one in statements]
    task = {
        "jar": str(BUNDLE),
        "folder": str(folder),
        "create": CREATE % kind,
        "mode": mode,
        "first": first,
        "statements": statements,
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
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kind", "mode", "first"),
    [
        ("cow", "turns", 0),
        pytest.param("cow", "turns", 1, marks=pytest.mark.slow),
        pytest.param("mor", "turns", 1, marks=pytest.mark.slow),
        pytest.param("cow", "apart", 0, marks=pytest.mark.slow),
        pytest.param("mor", "apart", 0, marks=pytest.mark.slow),
    ],
)
def test_java_and_hoodoo_lead_to_the_same_rows(
    python: Path, tmp_path: Path, kind: str, mode: str, first: int
) -> None:
    is_short = (kind, mode, first) == ("cow", "turns", 0)
    statements = [one for n, one in enumerate(STATEMENTS) if not is_short or n not in MORE]
    found = outcomes(python, tmp_path, statements, kind, mode, first)
    assert len(found) == len(statements)
    wrong = [one for one in found if one["errors"] or one["java"] != one["ours"]]
    assert wrong == []
    assert max(len(one["java"][1]) for one in found) >= 5
    for path in tmp_path.glob("*/.hoodie"):
        with hoodoo.open_table(path.parent) as table:
            assert table.to_arrow().num_rows == 0
            assert table.metadata.verify() == ()
        assert verify_at(path.parent, Layers()).problems == ()
