"""
CALL: Hudi's procedures with their names, arguments and output columns.

Each procedure is one call of ``SparkTable``. A name without a counterpart is refused with the call or
the command that does its work.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Final

from pyspark.errors import AnalysisException, ParseException

from hoodoo.inspect.instants import InstantSummary
from hoodoo.spark.formats import has_hudi_bundle
from hoodoo.spark.sql.catalyst import constants, kind_of, listed_seq, parse_expression
from hoodoo.spark.sql.names import find_table, required_table
from hoodoo.spark.sql.statements import name_parts
from hoodoo.spark.table import SparkTable
from tableservices.service import pending_plans
from timeline.errors import InvalidInputError
from timeline.model.instant import Action

CALL = re.compile(
    r"\s*call\s+(?:system\s*\.\s*)?(?P<name>\w+)\s*\((?P<args>.*)\)\s*;?\s*",
    re.IGNORECASE | re.DOTALL,
)
_NONE: Final = object()  # a required argument has no default

Rows = Iterator[Sequence[object]]
Run = Callable[[SparkTable, Mapping[str, Any]], Rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Procedure:
    """
    A procedure.

    Args:
        arguments: Names with defaults, in the order of positional arguments.
        columns: The schema of its rows.
        run: Yields the rows.
    """

    arguments: Mapping[str, object] = field(default_factory=dict)
    columns: str
    run: Run


def call(spark: Any, match: re.Match[str]) -> Any:
    """
    Run ``CALL [system.]procedure(arguments)``.

    Returns:
        The rows; None if the table belongs to Hudi's bundle.

    Raises:
        InvalidInputError: The procedure is unknown (``sql_procedure``), or an argument is wrong
            (``sql_argument``).
        TableNotFoundError: The table is unknown.
    """
    name = match["name"].lower()
    procedure = PROCEDURES.get(name)
    in_bundle = has_hudi_bundle(spark)
    if name == "help" and not in_bundle:
        given = _arguments(spark, name, _HELP, match["args"])
        return spark.createDataFrame(list(_help(given["cmd"])), _HELP.columns)
    if procedure is None:
        if in_bundle:
            return None
        raise _unknown(name)
    given = _arguments(spark, name, procedure, match["args"])
    path, table = given.pop("path"), given.pop("table")
    if path is None and table is None:
        raise _wrong(name, "name the table: table => 'db.name', or path => '/tables/name'")
    parts = name_parts(spark, str(table)) if path is None else ("hudi", str(path))
    if in_bundle and find_table(spark, parts) is None:
        return None
    named = required_table(spark, parts)
    options = _options(name, given)
    with SparkTable(spark, named.path, {**named.options, **options}) as opened:
        rows = [tuple(row) for row in procedure.run(opened, given)]
    return spark.createDataFrame(rows, procedure.columns)


def _arguments(spark: Any, name: str, procedure: Procedure, text: str) -> dict[str, Any]:
    """Return the arguments of a call by their names, with defaults."""
    try:
        parsed = parse_expression(spark, f"{name}({text})")
        given = [
            (str(one.key()).lower(), one.value())
            if kind_of(one) == "NamedArgumentExpression"
            else (None, one)
            for one in listed_seq(parsed.arguments())
        ]
        values = constants(spark, [value for _, value in given])
    except (AnalysisException, ParseException) as error:
        raise _wrong(name, f"arguments are literals, such as table => 'orders': {text}") from error
    order = [*procedure.arguments]
    found: dict[str, Any] = {**procedure.arguments}
    if procedure is not _HELP:
        order = ["table", *order, "path"]
        found |= {"table": None, "path": None}
    for (key, _), position, value in zip(given, range(len(given)), values, strict=True):
        if key is None and position >= len(order):
            raise _wrong(name, f"it takes {order}")
        chosen = order[position] if key is None else key
        if chosen not in found:
            raise _wrong(name, f"it has no argument {chosen!r}, but {order}")
        found[chosen] = value
    missing = [key for key, value in found.items() if value is _NONE]
    if missing:
        raise _wrong(name, f"an argument is missing: {missing}")
    return found


def _options(name: str, given: dict[str, Any]) -> dict[str, str]:
    """Return the options of a call: its argument ``options``, a text of ``key=value,key=value``."""
    text = given.pop("options", None)
    found: dict[str, str] = {}
    for part in filter(None, (one.strip() for one in str(text or "").split(","))):
        key, sign, value = part.partition("=")
        if not sign:
            raise _wrong(name, f"options have the form 'key=value,key=value': {part!r}")
        found[key.strip()] = value.strip()
    for argument, key in _OPTIONS_OF.get(name, {}).items():
        if given.get(argument) is not None:
            found[key] = str(given[argument])
    return found


def _help(name: object) -> Rows:
    """Yield one line about each procedure, or about one."""
    chosen = PROCEDURES
    if name is not None:
        key = str(name).lower()
        if key not in PROCEDURES:
            raise _unknown(key)
        chosen = {key: PROCEDURES[key]}
    for key, one in sorted(chosen.items()):
        given = (
            argument if default in (None, "", _NONE) else f"{argument} = {default}"
            for argument, default in one.arguments.items()
        )
        yield (f"{key}({', '.join(('table', *given, 'path'))}): {one.columns}",)


def _wrong(name: str, why: str) -> InvalidInputError:
    return InvalidInputError(f"CALL {name}: {why}", kind="sql_argument", procedure=name)


def _unknown(name: str) -> InvalidInputError:
    instead = _INSTEAD.get(name)
    if instead is None:
        instead = f"there is no such procedure; these work: {', '.join(sorted(PROCEDURES))}"
    return InvalidInputError(
        f"hoodoo does not have the procedure {name}: {instead}",
        kind="sql_procedure",
        procedure=name,
    )


# ---- Commits


def _limited(rows: Rows, given: Mapping[str, Any]) -> Rows:
    limit = given.get("limit")
    return rows if limit is None else islice(rows, int(limit))


_WRITES = frozenset({"commit", "deltacommit", "replacecommit"})


def _commits(table: SparkTable, *, archived: bool) -> Iterator[InstantSummary]:
    for one in table.history(archived=archived):
        if one.action in _WRITES and one.completion_time and one.archived is archived:
            yield one


def _show_commits(table: SparkTable, given: Mapping[str, Any]) -> Rows:
    return _limited((_commit_row(one) for one in _commits(table, archived=False)), given)


def _commit_row(one: InstantSummary) -> Sequence[object]:
    added = one.files_written if not one.rows_updated else 0
    return (
        one.requested_time,
        one.completion_time,
        one.action,
        one.bytes_written,
        added,
        one.files_written - added,
        len(one.partitions),
        one.rows_inserted + one.rows_updated,
        one.rows_updated,
        0,
    )


def _show_archived_commits(table: SparkTable, given: Mapping[str, Any]) -> Rows:
    start, end = str(given["start_ts"] or ""), str(given["end_ts"] or "9")
    rows = (
        (one[0], one[1], *one[3:])
        for one in map(_commit_row, _commits(table, archived=True))
        if start <= str(one[0]) <= end
    )
    return _limited(rows, given)


def _show_commit_partitions(table: SparkTable, given: Mapping[str, Any]) -> Rows:
    one = table.explain(given["instant_time"])
    rows = ((one.action, path) for path in one.partitions)
    return _limited(rows, given)


def _show_timeline(table: SparkTable, given: Mapping[str, Any]) -> Rows:
    first, last = str(given["starttime"] or ""), str(given["endtime"] or "9")

    def rows() -> Rows:
        for one in table.history(archived=bool(given["showarchived"])):
            if first <= one.requested_time <= last:
                yield (
                    one.requested_time,
                    one.action,
                    one.state.upper(),
                    one.requested_time,
                    one.completion_time,
                    "ARCHIVED" if one.archived else "ACTIVE",
                )

    return _limited(rows(), given)


def _show_rollbacks(table: SparkTable, given: Mapping[str, Any]) -> Rows:
    rows = (
        (one.requested_time, one.completion_time, one.files_deleted, len(one.partitions))
        for one in table.history()
        if one.action == "rollback"
    )
    return _limited(rows, given)


def _rollback(table: SparkTable, given: Mapping[str, Any]) -> Rows:
    table.rollback(given["instant_time"])
    yield (True,)


# ---- Properties and savepoints


def _show_table_properties(table: SparkTable, given: Mapping[str, Any]) -> Rows:
    return _limited(iter(sorted(table.config.raw.items())), given)


def _show_savepoints(table: SparkTable, given: Mapping[str, Any]) -> Rows:  # noqa: ARG001
    yield from ((one.requested_time,) for one in reversed(table.savepoints))


def _create_savepoint(table: SparkTable, given: Mapping[str, Any]) -> Rows:
    table.savepoint(given["commit_time"] or None, comments=str(given["comments"]))
    yield (True,)


def _delete_savepoint(table: SparkTable, given: Mapping[str, Any]) -> Rows:
    table.delete_savepoint(given["instant_time"] or _newest_savepoint(table))
    yield (True,)


def _restore(table: SparkTable, given: Mapping[str, Any]) -> Rows:
    wanted = given["instant_time"] or _newest_savepoint(table)
    if wanted not in {one.requested_time for one in table.savepoints}:
        raise _wrong("rollback_to_savepoint", f"the table has no savepoint of this write: {wanted}")
    table.restore(wanted)
    yield (True,)


def _newest_savepoint(table: SparkTable) -> str:
    if not table.savepoints:
        raise _wrong("savepoint", "the table has no savepoint")
    return table.savepoints[-1].requested_time


# ---- Table services


def _run_service(table: SparkTable, given: Mapping[str, Any], service: str) -> Rows:
    """Run pending plans of a service, or plan and run it; ``op => 'schedule'`` only plans."""
    op = str(given["op"] or "run").lower()
    action = _PLANS[service]
    if op == "schedule":
        planned = table.services.schedule(service)
        made = [] if planned is None else [planned.requested_time]
    elif op not in ("run", "execute", "scheduleandexecute"):
        raise _wrong(
            f"run_{service}", f"op is 'schedule', 'run', 'execute' or 'scheduleAndExecute': {op!r}"
        )
    else:
        named = given.get("timestamp") or given.get("instants")
        pending = [one.requested_time for one in pending_plans(table.context.active(), *action)]
        wanted = [one.strip() for one in str(named).split(",")] if named else pending
        if op == "scheduleandexecute":
            wanted = []
        made = [time for time in wanted if table.services.execute(time) is not None]
        if not wanted and op != "execute":
            result = _whole_round(table, given, service)
            made = [] if result is None else [result.requested_time]
    for one in made:
        found = table.explain(one)
        yield _plan_row(found, service)


def _whole_round(table: SparkTable, given: Mapping[str, Any], service: str) -> Any:
    if service == "compact":
        return table.services.compact()
    order = given.get("order")
    columns = None if not order else [one.strip() for one in str(order).split(",")]
    curve = given.get("order_strategy")
    return table.services.cluster(columns, curve=None if not curve else str(curve).lower())


def _plan_row(one: InstantSummary, service: str) -> Sequence[object]:
    state = "COMPLETED" if one.completion_time else one.state.upper()
    row = (one.requested_time, len(one.file_groups), state)
    return row if service == "compact" else (*row, ",".join(one.partitions))


def _show_plans(table: SparkTable, given: Mapping[str, Any], service: str) -> Rows:
    actions = {action.value for action in _PLANS[service]}
    rows = (
        _plan_row(one, service)
        for one in table.history()
        if one.action in actions or one.operation.lower() in (service, f"{service}ion")
    )
    return _limited(rows, given)


def _clean(table: SparkTable, given: Mapping[str, Any]) -> Rows:  # noqa: ARG001
    started = time.monotonic()
    result = table.services.clean()
    if result is None:
        return
    took_ms = int((time.monotonic() - started) * 1000)
    yield (result.requested_time, took_ms, len(result.files), result.retained_since or "", "{}", 2)


def _truncate(table: SparkTable, given: Mapping[str, Any]) -> Rows:
    partitions = given["partitions"]
    if partitions:
        table.delete_partitions(str(partitions).split(","))
    else:
        table.insert_overwrite_table(table.schema.empty_table())
    yield (0,)


def _drop_partition(table: SparkTable, given: Mapping[str, Any]) -> Rows:
    table.delete_partitions(str(given["partition"]).split(","))
    yield (0,)


_PLANS: Final = {
    "compact": (Action.COMPACTION,),
    "cluster": (Action.CLUSTERING, Action.REPLACECOMMIT),
}
_STATS = (
    "total_bytes_written long, total_files_added long, total_files_updated long, "
    "total_partitions_written long, total_records_written long, "
    "total_update_records_written long, total_errors long"
)
_SERVICE = {"op": "run", "timestamp": None, "options": None, "instants": None, "limit": None}
_CLUSTERING = {
    "predicate": None,
    "order": None,
    "op": "run",
    "order_strategy": None,
    "options": None,
    "instants": None,
    "selected_partitions": None,
    "limit": None,
}

#: Arguments that are options of the call.
_OPTIONS_OF: Final = {
    "run_clean": {
        "clean_policy": "hoodie.clean.policy",
        "retain_commits": "hoodie.clean.commits.retained",
        "hours_retained": "hoodie.clean.hours.retained",
        "file_versions_retained": "hoodie.clean.fileversions.retained",
    },
    "run_clustering": {
        "selected_partitions": "hoodie.clustering.plan.strategy.partition.selected",
    },
}

PROCEDURES: Final[Mapping[str, Procedure]] = {
    "show_commits": Procedure(
        arguments={"limit": 10},
        columns=f"commit_time string, state_transition_time string, action string, {_STATS}",
        run=_show_commits,
    ),
    "show_archived_commits": Procedure(
        arguments={"limit": 10, "start_ts": "", "end_ts": ""},
        columns=f"commit_time string, state_transition_time string, {_STATS}",
        run=_show_archived_commits,
    ),
    "show_commit_partitions": Procedure(
        arguments={"instant_time": _NONE, "limit": None},
        columns="action string, partition_path string",
        run=_show_commit_partitions,
    ),
    "show_timeline": Procedure(
        arguments={"limit": 20, "showarchived": False, "starttime": "", "endtime": ""},
        columns="instant_time string, action string, state string, requested_time string, "
        "completed_time string, timeline_type string",
        run=_show_timeline,
    ),
    "show_rollbacks": Procedure(
        arguments={"limit": 10},
        columns="instant string, completed_time string, total_files_deleted int, "
        "total_partitions int",
        run=_show_rollbacks,
    ),
    "rollback_to_instant": Procedure(
        arguments={"instant_time": _NONE}, columns="rollback_result boolean", run=_rollback
    ),
    "show_table_properties": Procedure(
        arguments={"limit": None},
        columns="key string, value string",
        run=_show_table_properties,
    ),
    "show_savepoints": Procedure(columns="savepoint_time string", run=_show_savepoints),
    "create_savepoint": Procedure(
        arguments={"commit_time": "", "user": "", "comments": ""},
        columns="create_savepoint_result boolean",
        run=_create_savepoint,
    ),
    "delete_savepoint": Procedure(
        arguments={"instant_time": ""},
        columns="delete_savepoint_result boolean",
        run=_delete_savepoint,
    ),
    "rollback_to_savepoint": Procedure(
        arguments={"instant_time": ""},
        columns="rollback_savepoint_result boolean",
        run=_restore,
    ),
    "run_compaction": Procedure(
        arguments=_SERVICE,
        columns="timestamp string, operation_size int, state string",
        run=partial(_run_service, service="compact"),
    ),
    "show_compaction": Procedure(
        arguments={"limit": 20},
        columns="timestamp string, operation_size int, state string",
        run=partial(_show_plans, service="compact"),
    ),
    "run_clustering": Procedure(
        arguments=_CLUSTERING,
        columns="timestamp string, input_group_size int, state string, involved_partitions string",
        run=partial(_run_service, service="cluster"),
    ),
    "show_clustering": Procedure(
        arguments={"limit": 20, "show_involved_partition": False},
        columns="timestamp string, input_group_size int, state string, involved_partitions string",
        run=partial(_show_plans, service="cluster"),
    ),
    "run_clean": Procedure(
        arguments={
            "clean_policy": None,
            "retain_commits": None,
            "hours_retained": None,
            "file_versions_retained": None,
            "options": None,
        },
        columns="start_clean_time string, time_taken_in_millis long, total_files_deleted int, "
        "earliest_commit_to_retain string, bootstrap_part_metadata string, version int",
        run=_clean,
    ),
    "drop_partition": Procedure(
        arguments={"partition": _NONE}, columns="result int", run=_drop_partition
    ),
    "truncate_table": Procedure(arguments={"partitions": ""}, columns="result int", run=_truncate),
}
_HELP: Final = Procedure(
    arguments={"cmd": None}, columns="result string", run=lambda _, given: _help(given["cmd"])
)
#: What does the work of Hudi's other procedures.
_INSTEAD: Final = {
    "archive_commits": "hoodoo services run TABLE archive",
    "commits_compare": "hoodoo diff TABLE",
    "copy_to_table": "CREATE TABLE ... USING hudi AS SELECT ...",
    "copy_to_temp_view": "CREATE TEMPORARY VIEW ... AS SELECT ...",
    "create_metadata_table": "hoodoo metadata create TABLE",
    "delete_marker": "markers of dead writers are deleted by their rollback: hoodoo rollback TABLE",
    "delete_metadata_table": "hoodoo metadata drop TABLE",
    "downgrade_table": "write another table with hoodie.write.table.version=8",
    "export_instants": "hoodoo timeline TABLE --output json",
    "hdfs_parquet_import": "CREATE TABLE ... USING hudi AS SELECT * FROM parquet.`path`",
    "hive_sync": "a write with hoodie.datasource.hive_sync.enable=true",
    "init_metadata_table": "hoodoo metadata create TABLE",
    "repair_add_partition_meta": "hoodoo table verify TABLE",
    "repair_corrupted_clean_files": "hoodoo table verify TABLE",
    "repair_deduplicate": "hoodoo table repair-keys TABLE",
    "repair_migrate_partition_meta": "hoodoo table verify TABLE",
    "repair_overwrite_hoodie_props": "hoodoo table show TABLE shows the properties",
    "run_bootstrap": "CREATE TABLE ... USING hudi AS SELECT * FROM parquet.`path`",
    "run_rollback_inflight_tableservice": "hoodoo services cancel TABLE",
    "run_ttl": "hoodoo services run TABLE ttl",
    "show_all_fs_view": "hoodoo files TABLE",
    "show_bootstrap_mapping": "hoodoo reads no bootstrapped tables",
    "show_bootstrap_partitions": "hoodoo reads no bootstrapped tables",
    "show_column_stats_overlap": "hoodoo metadata show TABLE",
    "show_commit_extra_metadata": "hoodoo explain TABLE INSTANT --output json",
    "show_commit_files": "hoodoo explain TABLE INSTANT --output json",
    "show_commit_write_stats": "hoodoo explain TABLE INSTANT",
    "show_commits_metadata": "hoodoo log TABLE --output json",
    "show_archived_commits_metadata": "hoodoo log TABLE --archived --output json",
    "show_file_status": "hoodoo files TABLE",
    "show_fs_path_detail": "hoodoo files TABLE",
    "show_invalid_parquet": "hoodoo table verify TABLE",
    "show_latest_fs_view": "hoodoo files TABLE",
    "show_logfile_metadata": "hoodoo files TABLE",
    "show_logfile_records": "hoodoo read TABLE",
    "show_metadata_table_column_stats": "hoodoo metadata show TABLE",
    "show_metadata_table_files": "hoodoo metadata show TABLE",
    "show_metadata_table_partitions": "hoodoo metadata show TABLE",
    "show_metadata_table_stats": "hoodoo metadata show TABLE",
    "show_rollback_detail": "hoodoo explain TABLE INSTANT",
    "stats_file_sizes": "hoodoo files TABLE",
    "stats_wa": "hoodoo log TABLE",
    "sync_validate": "hoodoo table verify TABLE",
    "upgrade_table": "hoodoo table upgrade TABLE",
    "validate_metadata_table_files": "hoodoo metadata verify TABLE",
}
