"""
Makes tables with the real Java Hudi, and records Java's answers about each.

A recipe has the settings of a table and its steps. Its account has the keys of the golden tables'
accounts (`golden/PROVENANCE.md`), so the same rules compare both. If Java refuses a step, the
account notes that and the recipe continues: the result is still a table that Java made.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.interop.java import JavaOracle, JavaRefusedError

WRITE = "hoodie.datasource.write."

#: Settings of all tables: no automatic services, and small files.
COMMON: Mapping[str, str] = {
    "hoodie.archive.automatic": "false",
    "hoodie.bloom.index.filter.dynamic.max.entries": "1000",
    "hoodie.clean.automatic": "false",
    "hoodie.compact.inline": "false",
    "hoodie.embed.timeline.server": "false",
    "hoodie.index.bloom.num_entries": "200",
    "hoodie.metadata.enable": "false",
    "hoodie.table.timeline.timezone": "UTC",
    "hoodie.write.markers.type": "DIRECT",
    "hoodie.write.auto.upgrade": "false",
    WRITE + "recordkey.field": "id",
    WRITE + "partitionpath.field": "region",
    WRITE + "precombine.field": "ts",
    WRITE + "hive_style_partitioning": "true",
    WRITE + "table.type": "MERGE_ON_READ",
    # Services know no word of the data source's.
    "hoodie.compact.inline.max.delta.commits": "1",
    "hoodie.clustering.async.max.commits": "1",
    "hoodie.clustering.inline.max.commits": "1",
    "hoodie.clustering.plan.strategy.small.file.limit": "10000000",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A write by the data source; one that `crashes` leaves its files, markers and no result."""

    rows: Sequence[Mapping[str, Any]]
    operation: str = "upsert"
    conf: Mapping[str, str] = field(default_factory=dict)
    schema: str | None = None  # from now on
    crashes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A table service; `instant` counts the completed writes, so -1 is the newest."""

    what: str
    instant: int | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    schedule_only: bool = False
    pending: bool = False  # runs the oldest pending plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Sql:
    """Spark SQL; `{t}` is the table. The settings count for this statement only."""

    statement: str
    settings: Mapping[str, str] = field(default_factory=dict)


Step = Write | Service | Sql


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A table to be made."""

    name: str
    schema: str
    steps: Sequence[Step]
    conf: Mapping[str, str] = field(default_factory=dict)
    releases: tuple[str, ...] = ("1.2.0", "1.0.2", "0.15.0")
    read_conf: Mapping[str, str] = field(default_factory=dict)  # options for Java's reader
    incremental: bool = True  # Java runs out of memory over blocks of partial updates


def make(java: JavaOracle, recipe: Recipe, folder: Path) -> dict[str, Any]:
    """
    Make a table under `folder` and its account `<name>.json` next to it.

    If the table exists, return its existing account.
    """
    path, account_file = folder / recipe.name, folder / f"{recipe.name}.json"
    if account_file.exists():
        known: dict[str, Any] = json.loads(account_file.read_text(encoding="utf-8"))
        return known
    shutil.rmtree(path, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    conf = {**COMMON, **recipe.conf}
    conf = {key: text for key, text in conf.items() if text != ""}
    refused = []
    schema = recipe.schema
    for number, step in enumerate(recipe.steps):
        try:
            if isinstance(step, Write):
                schema = step.schema or schema
                _write(java, path, step, conf, schema)
            elif isinstance(step, Service):
                _service(java, path, step, conf)
            else:
                _sql(java, path, step)
        except JavaRefusedError as error:
            refused.append({"step": number, **error.answer})
    account = account_of(java, path, conf=recipe.read_conf, incremental=recipe.incremental)
    account |= {"conf": conf, "refused": refused}
    account_file.write_text(json.dumps(account, indent=1, sort_keys=True), encoding="utf-8")
    return account


def account_of(
    java: JavaOracle,
    path: Path,
    *,
    conf: Mapping[str, str] | None = None,
    incremental: bool = True,
) -> dict[str, Any]:
    """Java's answers about a table: timeline, slices, and rows in every way of reading."""
    properties = java.properties(path)
    version = int(properties["hoodie.table.version"])
    timeline = java.timeline(path, archived=True)
    done = [one for one in timeline if _is_write(one)]
    times = sorted(one["requested"] for one in done)
    by_completion = version > 6
    ends = sorted(one["completion"] for one in done) if by_completion else times
    asked: list[tuple[str, str | None]] = []
    if ends and incremental:
        middle = ends[len(ends) // 2]
        asked = [("0", None), (middle, None), (ends[0], middle)]
    read_optimized = properties.get("hoodie.table.type") == "MERGE_ON_READ"
    return {
        "hudi": java.version,
        "table_version": version,
        "properties": properties,
        "timeline": timeline,
        "slices": _answer(lambda: java.slices(path)),
        "snapshot": _answer(lambda: java.read(path, conf=conf)),
        "read_optimized": _answer(lambda: java.read(path, query_type="read_optimized", conf=conf))
        if read_optimized
        else None,
        "as_of": {
            time: _answer(lambda time=time: java.read(path, as_of=time, conf=conf))
            for time in dict.fromkeys([*times[len(times) // 2 :][:1], *times[-2:-1]])
        },
        "incremental": [
            {
                "start": start,
                "end": end,
                "rows": _answer(
                    lambda start=start, end=end: java.read(
                        path, incremental=[start, *([end] if end else [])], conf=conf
                    )
                ),
            }
            for start, end in dict.fromkeys(asked)
        ],
    }


def ask_newer(newer: JavaOracle, recipe: Recipe, folder: Path) -> dict[str, Any]:
    """
    The account of a table, with a newer release's rows if its own release fails.

    1.0.2 cannot read every table it writes (`golden/PROVENANCE.md`). 0.15 stops reading a log at
    the block of a rollback that began after the newest write. So the write that rolled a crash
    back is invisible until the next one; later releases see it.
    """
    path, account_file = folder / recipe.name, folder / f"{recipe.name}.json"
    account: dict[str, Any] = json.loads(account_file.read_text(encoding="utf-8"))
    if account["hudi"] == newer.version or account.get("read_by") == newer.version:
        return account
    all_of_it = account["hudi"].startswith("0.") and any(
        isinstance(step, Write) and step.crashes for step in recipe.steps
    )
    errs = account["hudi"] == "1.0.2"
    conf = recipe.read_conf

    def again(theirs: Any, ask: Any) -> Any:
        return _answer(ask) if all_of_it or (errs and isinstance(theirs, dict)) else theirs

    for query in ("snapshot", "read_optimized"):
        if account[query] is not None:
            account[query] = again(
                account[query],
                lambda query=query: newer.read(path, query_type=query, conf=conf),
            )
    for time, theirs in account["as_of"].items():
        account["as_of"][time] = again(
            theirs, lambda time=time: newer.read(path, as_of=time, conf=conf)
        )
    for one in account["incremental"]:
        start = one["start"]
        if errs and start != "0":
            start = str(int(start) - 1)  # 1.0.2 counts the start in
        words = [start, *([one["end"]] if one["end"] else [])]
        one["rows"] = again(
            one["rows"], lambda words=words: newer.read(path, incremental=words, conf=conf)
        )
    account["read_by"] = newer.version
    account_file.write_text(json.dumps(account, indent=1, sort_keys=True), encoding="utf-8")
    return account


def _is_write(entry: Mapping[str, Any]) -> bool:
    return entry["state"] == "COMPLETED" and entry["action"] in (
        "commit",
        "deltacommit",
        "replacecommit",
    )


def _answer(ask: Any) -> Any:
    try:
        return ask()
    except JavaRefusedError as error:
        return error.answer


def _sql(java: JavaOracle, path: Path, step: Sql) -> None:
    settings = {"hoodie.compact.inline": "false", **step.settings}
    statements = [f"set {key}={text}" for key, text in settings.items()]
    undone = [*(f"reset {key}" for key in settings), "select 1"]
    try:
        java.sql(path, ";;".join([*statements, step.statement, *undone]))
    except JavaRefusedError:
        java.sql(path, ";;".join(undone))
        raise


def _write(java: JavaOracle, path: Path, step: Write, conf: Mapping[str, str], schema: str) -> None:
    before = _files(path) if step.crashes else set()
    java.write(
        path,
        [dict(row) for row in step.rows],
        step.operation,
        schema=schema,
        conf={**conf, **step.conf},
    )
    if step.crashes:
        _crash(java, path, before)


def _crash(java: JavaOracle, path: Path, before: set[Path]) -> None:
    """Take the result of the newest write back and put the markers there that it had."""
    newest = max(
        (one for one in java.timeline(path) if _is_write(one)), key=lambda one: one["requested"]
    )
    time, layout_1 = newest["requested"], not (path / ".hoodie" / "timeline").exists()
    timeline = path / ".hoodie" if layout_1 else path / ".hoodie" / "timeline"
    completed = f"{time}.{newest['action']}" if layout_1 else f"{time}_*.{newest['action']}"
    for file in timeline.glob(completed):
        file.unlink()
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    groups = {file.name.partition("_")[0] for file in before if not file.name.startswith(".")}
    for file in _files(path) - before:
        kind = "CREATE"
        if file.name.startswith("."):
            kind = "APPEND" if layout_1 else "CREATE"
        elif file.name.partition("_")[0] in groups:
            kind = "MERGE"
        marker = path / ".hoodie" / ".temp" / time / file.parent.relative_to(path)
        marker.mkdir(parents=True, exist_ok=True)
        (marker / f"{file.name}.marker.{kind}").touch()


def _files(path: Path) -> set[Path]:
    found = (*path.rglob("*.parquet"), *path.rglob(".*.log.*"))
    return {file for file in found if ".hoodie" not in file.parts and file.suffix != ".crc"}


def _service(java: JavaOracle, path: Path, step: Service, conf: Mapping[str, str]) -> None:
    words = ["service", str(path), step.what]
    if step.instant is not None:
        words.append(
            [one["requested"] for one in java.timeline(path) if _is_write(one)][step.instant]
        )
    words += ["--schedule-only"] if step.schedule_only else []
    if step.pending:
        actions = {"compact": "compaction", "logcompact": "logcompaction", "cluster": "clustering"}
        action = actions[step.what]
        waiting = [
            one["requested"]
            for one in java.timeline(path)
            if one["state"] != "COMPLETED"
            and one["action"] in (action, *(["replacecommit"] if action == "clustering" else []))
        ]
        if not waiting:
            return
        words += ["--pending", waiting[0]]
    for key, text in {**conf, **step.conf}.items():
        words += ["--conf", f"{key}={text}"]
    java.ask(*words)
