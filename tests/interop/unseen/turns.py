"""
Java Hudi and this engine take the same steps on two copies of one table.

Java makes a table, and it is copied. Then Java continues with the copy and this engine with
the table: the same rows, the same services, the same savepoint and restore. After each step
both engines read this engine's table alike. If the rows cannot depend on the moment of a
compaction, the copy of Java has the same.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

import pyarrow as pa

import hoodoo
from tableservices.upgrade import upgrade
from tests.interop.java import JavaOracle, JavaRefusedError
from tests.interop.unseen.answers import differences, from_folders
from tests.interop.unseen.recipe import (
    COMMON,
    WRITE,
    Recipe,
    Service,
    Step,
    Write,
    ask_newer,
    make,
)
from tests.interop.unseen.walks import walk
from tests.interop.values import comparable, encoded, same
from timeline.errors import HoodooError

Rows = list[dict[str, Any]]

#: Meta columns that say which engine wrote a row, not which row it is.
VOLATILE = ("_hoodie_commit_time", "_hoodie_commit_seqno", "_hoodie_file_name")

#: Retention that archives after a handful of commits. Archiving beyond a savepoint is left out:
#: on merge-on-read tables Java 1.2.0 then shows older values of rows itself.
SHORT: Mapping[str, str] = {
    "hoodie.clean.commits.retained": "1",
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
}

#: Columns that make keys and folders of the random tables.
KEY = ("id", "region", "at")

#: Reads our tables, and writes to them at the end.
JUDGE = "1.2.0"

#: Layout of folders -> the type of the partition column and its two values.
LAYOUTS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "slashes": ("string", {"us": "2018/08/31", "eu": "2018/10/05"}),
    "days": ("date", {"us": "2024-02-29", "eu": "1969-12-31"}),
    "moments": ("timestamp", {"us": "2024-02-29T12:00:00Z", "eu": "2001-09-09T01:46:40.123456Z"}),
}

#: A payload class by which the newer row wins, for any ordering value.
LATEST = "org.apache.hudi.common.model.OverwriteWithLatestAvroPayload"

#: Types that Java 1.2.0 cannot compare behind a first ordering field.
UNORDERED = ("date", "decimal")

#: It has no effect in Java Hudi 1.2; ours would warn.
MILLIS = "hoodie.parquet.outputtimestamptype"

#: Begins the line of a table whose steps ended early because an engine refuses by name.
STOPPED = "stopped:"

#: Kinds of error by which this engine refuses a table or a step by name.
REFUSED_BY_NAME = frozenset(
    {
        "instants_pending",
        "metadata_table_on",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignTable:
    """A table that Java makes, and the steps that both engines take behind it."""

    recipe: Recipe
    steps: Sequence[tuple[str, Rows]]  # the step, and its rows if it needs some

    @property
    def clock(self) -> str:
        """The zone of its times: LOCAL or UTC."""
        return self.recipe.conf["hoodie.table.timeline.timezone"]


def foreign_table(seed: int, release: str) -> ForeignTable:
    """
    Draw a table and its steps.

    Args:
        seed: Makes the same table again.
        release: Of the Java Hudi that makes the table.
    """
    rng = random.Random(f"foreign/{release}/{seed}")
    made = walk(seed, release)
    conf = {**made.conf, "hoodie.table.timeline.timezone": rng.choice(("LOCAL", "UTC"))}
    if release == "1.2.0":
        conf["hoodie.write.table.version"] = rng.choice(("9", "9", "8"))
    conf["hoodie.metadata.enable"] = "false"
    # not every write of Java stores this in the table
    conf.pop(WRITE + "drop.partition.columns", None)
    if rng.random() < 0.2:
        conf[MILLIS] = "TIMESTAMP_MILLIS"
    fields = conf[WRITE + "precombine.field"].split(",")
    if any(f"{field} {kind}" in made.schema for field in fields[1:] for kind in UNORDERED):
        conf[WRITE + "precombine.field"] = fields[0]
    # Behind a clustering that is only planned Java refuses every update. A clustering of buckets,
    # and an overwrite of ranges of hashes, make file groups that belong to no bucket.
    buckets = conf["hoodie.index.type"] == "BUCKET"
    ranges = conf.get("hoodie.index.bucket.engine") == "CONSISTENT_HASHING"
    made_of = [
        step
        for step in made.steps
        if not (_clusters(step) and (buckets or step.schedule_only))
        and not (ranges and _overwrites(step))
    ]
    if any(f"{field} string" in made.schema for field in ("ts", "ts2", "ts3")):
        made_of = [_in_avro(step) for step in made_of]
    name = f"foreign_{release.replace('.', '')}_{seed}"
    recipe = replace(made, name=name, conf=conf, steps=made_of)
    if conf.get(WRITE + "partitionpath.field") is None and rng.random() < 0.7:
        recipe = _laid_out(recipe, rng.choice(tuple(LAYOUTS)))
    batches = [list(step.rows) for step in recipe.steps if isinstance(step, Write) and step.rows]

    by_id = conf["hoodie.index.type"].startswith("GLOBAL")

    def rows() -> Rows:
        # Of two rows with one key and one ordering value Java keeps either.
        names = ("id",) if by_id else KEY
        drawn = rng.choice(batches)
        return list({json.dumps([row.get(k) for k in names]): dict(row) for row in drawn}.values())

    kinds = ["upsert", "upsert", "upsert", "delete", "clean", "compact"]
    if not ranges:  # refused by name there
        kinds.append("insert_overwrite")
    steps: list[tuple[str, Rows]] = []
    for _ in range(rng.randint(2, 4)):
        what = rng.choice(kinds)
        steps.append((what, rows() if what in ("upsert", "delete", "insert_overwrite") else []))
    if rng.random() < 0.6:
        steps += [("upsert", rows()), ("savepoint", [])]
        for _ in range(5):
            steps += [("upsert", rows()), *([("archive", [])] if rng.random() < 0.7 else [])]
        steps += [("clean", []), ("archive", []), ("restore", [])]
        upkeep = ("compact", "clean", *(() if buckets else ("cluster",)))
        steps += [(rng.choice(upkeep), [])] if rng.random() < 0.5 else []
    steps += [("upsert", rows())]
    return ForeignTable(recipe=recipe, steps=steps)


def _laid_out(recipe: Recipe, layout: str) -> Recipe:
    """The table with other folders; deletes of a folder by its old name are left out."""
    kind, values = LAYOUTS[layout]
    steps: list[Step] = []
    for step in recipe.steps:
        if not isinstance(step, Write):
            steps.append(step)
        elif step.operation != "delete_partition":
            rows = [{**row, "region": values[row["region"]]} for row in step.rows]
            steps.append(replace(step, rows=rows))
    schema = recipe.schema.replace("region string", f"region {kind}")
    return replace(recipe, schema=schema, steps=steps)


def _clusters(step: Step) -> TypeGuard[Service]:
    return isinstance(step, Service) and step.what == "cluster"


def _overwrites(step: Step) -> bool:
    return isinstance(step, Write) and step.operation.startswith("insert_overwrite")


def _in_avro(step: Step) -> Step:
    """Of Parquet logs whose order texts say Java shows older rows (`block_format`)."""
    if not isinstance(step, Write):
        return step
    conf = {key: text for key, text in step.conf.items() if "data.block.format" not in key}
    return replace(step, conf=conf)


def take_turns(
    ask: Callable[[str], JavaOracle], release: str, table: ForeignTable, folder: Path
) -> list[str]:
    """
    Make the table and let both engines take its steps.

    Args:
        ask: Gives the Java Hudi of a release.
        release: The one that makes the table and continues with the copy.
        table: The table and its steps.
        folder: For the tables.

    Returns:
        One line for each difference; empty when the engines agree.
    """
    java, judge = ask(release), ask(JUDGE)
    account = make(java, table.recipe, folder)
    path, twin = folder / table.recipe.name, folder / f"{table.recipe.name}_java"
    reading = table.recipe.read_conf
    if not isinstance(account["snapshot"], list):
        return [f"{STOPPED} java cannot read its own table"]
    # Of version 6 the newer release reads some slices otherwise than the one that made them.
    found = differences(path, ask_newer(judge, table.recipe, folder))
    if found and differences(path, account):
        return [f"as made: {line}" for line in found]
    conf = {key: text for key, text in {**COMMON, **table.recipe.conf, **SHORT}.items() if text}
    if account["table_version"] == 6:  # is upgraded when nothing is pending
        _finish(java, path, conf)
    shutil.rmtree(twin, ignore_errors=True)
    shutil.copytree(path, twin)
    theirs, ours = _JavaHands(java, twin, conf, table.recipe.schema), _OurHands(path, conf)
    # By event time a later row may revive a deleted key, which depends on compactions until then.
    alike = conf[WRITE + "table.type"] == "COPY_ON_WRITE" or not conf.get(
        WRITE + "precombine.field"
    )
    # Version 6 keeps no payload class of a copy-on-write table, and the upgrade takes event time.
    alike = alike and MILLIS not in conf and LATEST not in conf.values()
    try:
        if account["table_version"] == 6:
            ours.upgrade()
        for number, (what, rows) in enumerate(table.steps):
            name = f"step {number} {what}"
            try:
                theirs.take(what, rows)
            except JavaRefusedError as error:
                if rows:
                    return [f"{STOPPED} {name}: {error}"]
                continue  # nothing to compact, to restore, ...
            ours.take(what, rows)
            shown = ours.read()
            if apart := _apart(shown, judge.read(path, conf=reading), table.recipe):
                return [f"{name}: java reads our table differently: {apart}"]
            if alike and (apart := _apart(shown, java.read(twin, conf=reading), table.recipe)):
                return [f"{name}: java's own copy differs: {apart}"]
        if account["table_version"] > 6:
            try:
                _JavaHands(judge, twin, conf, table.recipe.schema).take(*table.steps[-1])
            except JavaRefusedError as error:
                return [f"{STOPPED} {JUDGE} on java's own copy: {error}"]
        _JavaHands(judge, path, conf, table.recipe.schema).take(*table.steps[-1])
        if apart := _apart(ours.read(), judge.read(path, conf=reading), table.recipe):
            return [f"behind java's next write: {apart}"]
    except HoodooError as error:
        kind = getattr(error, "kind", "")
        return [f"{STOPPED} {kind}"] if kind in REFUSED_BY_NAME else [f"we refuse: {kind}: {error}"]
    except JavaRefusedError as error:
        # 1.2.0 cannot compare dates and decimals of its own copy-on-write tables, either.
        stopped = account["table_version"] == 6 and "ClassCastException" in str(error)
        return [f"{STOPPED if stopped else 'java refuses our result:'} {error}"]
    finally:
        ours.close()
    return []


def _finish(java: JavaOracle, path: Path, conf: Mapping[str, str]) -> None:
    """Execute or roll back pending instants, as far as Java does it."""
    conf = {**conf, "hoodie.auto.commit": "true"}  # 0.15 commits no compaction without
    for one in java.timeline(path):
        if one["state"] == "COMPLETED":
            continue
        try:
            if one["action"] == "compaction":
                java.service(path, "compact", pending=one["requested"], conf=conf)
            else:
                java.service(path, "rollback", one["requested"], conf=conf)
        except JavaRefusedError:
            continue


class _JavaHands:
    """Takes steps with Java Hudi."""

    def __init__(self, java: JavaOracle, path: Path, conf: Mapping[str, str], schema: str) -> None:
        self._java, self._path, self._conf, self._schema = java, path, conf, schema
        self._saved = ""

    def take(self, what: str, rows: Rows) -> None:
        """One step; errors are Java's."""
        if rows:
            self._java.write(self._path, rows, what, schema=self._schema, conf=self._conf)
        elif what == "savepoint":
            writes = ("commit", "deltacommit", "replacecommit")
            done = (
                one["requested"]
                for one in self._java.timeline(self._path)
                if one["state"] == "COMPLETED" and one["action"] in writes
            )
            self._saved = max(done)
            self._java.service(self._path, what, self._saved, conf=self._conf)
        elif what == "restore":
            self._java.service(self._path, what, self._saved, conf=self._conf)
        else:
            self._java.service(self._path, what, conf=self._conf)


class _OurHands:
    """Takes steps with this engine."""

    def __init__(self, path: Path, conf: Mapping[str, str]) -> None:
        self._path = path
        self._conf = {key: text for key, text in conf.items() if key != MILLIS and text != LATEST}
        self._table: hoodoo.Table | None = None
        self._saved = ""

    @property
    def table(self) -> hoodoo.Table:
        """The open table."""
        if self._table is None:
            self._table = hoodoo.open_table(self._path, properties=self._conf)
        return self._table

    def upgrade(self) -> None:
        """From version 6 to the newest."""
        upgrade(self.table.context)
        self.close()

    def take(self, what: str, rows: Rows) -> None:
        """One step."""
        if rows:
            sent = _arrow(rows, self.table.schema)
            if what == "delete":  # Java's operation drops the ordering values of the rows
                sent = sent.select([name for name in (*KEY, "year") if name in sent.schema.names])
            getattr(self.table, what)(sent)
        elif what == "savepoint":
            self._saved = str(self.table.savepoint().requested_time)
        elif what == "restore":
            self.table.restore(self._saved)
        else:
            getattr(self.table.services, what)()

    def read(self) -> Rows:
        """The rows that a fresh reader sees."""
        with hoodoo.open_table(self._path) as table:
            return encoded(table.current_state().to_arrow(with_hoodie_columns=True))

    def close(self) -> None:
        """Close the table; the next step opens it again."""
        if self._table is not None:
            self._table.close()
            self._table = None


def _arrow(rows: Rows, schema: pa.Schema) -> pa.Table:
    """Rows as Spark's JSON reader takes them, in the table's types; absent columns are null."""
    return pa.table(
        {
            field.name: pa.array([_cell(r.get(field.name), field.type) for r in rows], field.type)
            for field in schema
        },
        schema=schema,
    )


def _cell(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_map(kind):
        return [(key, _cell(item, kind.item_type)) for key, item in value.items()]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_cell(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind):
        return {field.name: _cell(value.get(field.name), field.type) for field in kind}
    plain: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], Any]], ...] = (
        (pa.types.is_timestamp, dt.datetime.fromisoformat),
        (pa.types.is_date, dt.date.fromisoformat),
        (pa.types.is_decimal, decimal.Decimal),
        (pa.types.is_floating, float),
        (pa.types.is_binary, base64.b64decode),
    )
    return next((read(value) for matches, read in plain if matches(kind)), value)


def _apart(mine: Rows, theirs: Rows, recipe: Recipe) -> str:
    """The rows that only one side has, without the columns that name the engine."""
    fields = recipe.conf.get(WRITE + "partitionpath.field", COMMON[WRITE + "partitionpath.field"])
    columns = [name.partition(":")[0] for name in fields.split(",")]
    left, right = (
        [{k: v for k, v in row.items() if k not in VOLATILE} for row in side]
        for side in (mine, theirs)
    )
    left, right = comparable(left), comparable(from_folders(right, left, columns))
    if same(left, right):
        return ""
    only = [row for row in left if row not in right], [row for row in right if row not in left]
    return f"{len(left)} ours, {len(right)} java; ours only {only[0][:2]}; java only {only[1][:2]}"
