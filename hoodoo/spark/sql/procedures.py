"""
Hudi's procedures: their arguments and columns, and the call of ``SparkTable`` that each one is.

``call.py`` runs them. A name without a counterpart is refused with the command that does its work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from hoodoo.spark.spark_table import SparkTable
from hoodoo.spark.sql import shown_rows
from hoodoo.spark.sql.names import NamedTable, load_named
from hoodoo.spark.sql.shown_rows import Given, Rows
from tableservices.cleaning.plan import CleaningSettings, is_due
from tableservices.service import pending_plans
from timeline.errors import InvalidInputError
from timeline.model.instant import Action

REQUIRED: Final = object()  # a required argument has no default

Run = Callable[[SparkTable, Given], Rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Procedure:
    """
    A procedure.

    Args:
        arguments: Names in lower case with defaults, in the order of positional arguments.
        columns: The schema of its rows.
        run: Yields the rows.
    """

    arguments: Mapping[str, object]
    columns: str
    run: Run

    @property
    def order(self) -> list[str]:
        """The names of positional arguments; each procedure takes ``path``."""
        return [*self.arguments, *(() if "path" in self.arguments else ("path",))]


def wrong_argument(name: str, why: str) -> InvalidInputError:
    """Return the error of a wrong argument of a procedure."""
    return InvalidInputError(f"CALL {name}: {why}", kind="sql_argument", procedure=name)


# ---- Rollback


def _rollback(table: SparkTable, given: Given) -> Rows:
    table.rollback(given["instant_time"])
    yield (True,)


# ---- Properties and savepoints


def _show_table_properties(table: SparkTable, given: Given) -> Rows:  # noqa: ARG001
    yield from sorted(table.config.raw.items())


def _show_savepoints(table: SparkTable, given: Given) -> Rows:  # noqa: ARG001
    yield from ((one.requested_time,) for one in reversed(table.savepoints))


def _create_savepoint(table: SparkTable, given: Given) -> Rows:
    table.savepoint(given["commit_time"] or None, comments=str(given["comments"]))
    yield (True,)


def _delete_savepoint(table: SparkTable, given: Given) -> Rows:
    table.delete_savepoint(given["instant_time"] or _newest_savepoint(table))
    yield (True,)


def _restore(table: SparkTable, given: Given) -> Rows:
    wanted = given["instant_time"] or _newest_savepoint(table)
    if wanted not in {one.requested_time for one in table.savepoints}:
        raise wrong_argument(
            "rollback_to_savepoint", f"the table has no savepoint of this write: {wanted}"
        )
    table.restore(wanted)
    yield (True,)


def _newest_savepoint(table: SparkTable) -> str:
    if not table.savepoints:
        raise wrong_argument("savepoint", "the table has no savepoint")
    return table.savepoints[-1].requested_time


# ---- Table services


def _run_service(table: SparkTable, given: Given, service: str) -> Rows:
    """Run pending plans of a service, or plan and run it; ``op => 'schedule'`` only plans."""
    op = str(given["op"] or "run").lower()
    action = _PLANS[service]
    if op == "schedule":
        planned = table.services.schedule(service)
        made = [] if planned is None else [planned.requested_time]
    elif op not in ("run", "execute", "scheduleandexecute"):
        raise wrong_argument(
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
    shown = shown_rows.show_compaction if service == "compact" else shown_rows.show_clustering
    yield from (row for row in shown(table, given) if row[0] in made)


def _whole_round(table: SparkTable, given: Given, service: str) -> Any:
    if service == "compact":
        return table.services.compact()
    order = given.get("order")
    columns = None if not order else [one.strip() for one in str(order).split(",")]
    curve = given.get("order_strategy")
    return table.services.cluster(columns, curve=None if not curve else str(curve).lower())


def _clean(table: SparkTable, given: Given) -> Rows:
    started = time.monotonic()
    settings = CleaningSettings.from_properties(table.properties)
    if given["trigger_max_commits"] is not None and not is_due(table.context.active(), settings):
        return
    result = table.services.clean()
    if result is None:
        return
    took_ms = int((time.monotonic() - started) * 1000)
    yield (result.requested_time, took_ms, len(result.files), result.retained_since or "", "{}", 2)


def _truncate(table: SparkTable, given: Given) -> Rows:
    started = time.monotonic()
    partitions = given["partitions"]
    if partitions:
        table.delete_partitions(str(partitions).split(","))
    else:
        table.insert_overwrite_table(table.schema.empty_table())
    yield "SUCCESS", int((time.monotonic() - started) * 1000)


def _drop_partition(table: SparkTable, given: Given) -> Rows:
    table.delete_partitions(str(given["partition"]).split(","))
    yield ("SUCCESS",)


def _archive(table: SparkTable, given: Given) -> Rows:  # noqa: ARG001
    table.services.archive()
    yield (0,)


def _run_ttl(table: SparkTable, given: Given) -> Rows:  # noqa: ARG001
    result = table.services.expire_partitions()
    yield from ((path,) for path in (result.partitions if result is not None else ()))


def _cancel(table: SparkTable, given: Given) -> Rows:
    started = time.monotonic()
    table.services.cancel(given["pending_instant"])
    yield given["pending_instant"], f"{int((time.monotonic() - started) * 1000)} ms"


# ---- Metadata table


def _create_metadata(table: SparkTable, given: Given) -> Rows:  # noqa: ARG001
    made = table.metadata.create()
    yield (f"Created: {', '.join(made.partitions)}" if made else "Nothing to create",)


def _delete_metadata(table: SparkTable, given: Given) -> Rows:  # noqa: ARG001
    yield (f"Removed: {', '.join(table.metadata.drop())}",)


# ---- Copies


def _read_for_copy(table: SparkTable, given: Given) -> Any:
    kind = str(given["query_type"]).lower()
    if kind not in ("snapshot", "read_optimized", "incremental"):
        raise wrong_argument(
            "copy_to_table",
            f"query_type is 'snapshot', 'read_optimized' or 'incremental': {kind!r}",
        )
    options = {"hoodie.datasource.query.type": kind}
    for argument, key in (
        ("as_of_instant", "as.of.instant"),
        ("begin_instance_time", "hoodie.datasource.read.begin.instanttime"),
        ("end_instance_time", "hoodie.datasource.read.end.instanttime"),
    ):
        if given[argument]:
            options[key] = str(given[argument])
    return load_named(table.spark, NamedTable(path=table.path), options)


def _copy_to_table(table: SparkTable, given: Given) -> Rows:
    """Copy rows to a table that the catalog gets: a Parquet table of Spark, as in Java Hudi."""
    rows = _read_for_copy(table, given)
    columns = [one.strip() for one in str(given["columns"]).split(",") if one.strip()]
    chosen = rows.select(*columns) if columns else rows
    mode = str(given["save_mode"]).lower()
    if mode not in ("append", "errorifexists", "ignore", "overwrite"):
        raise wrong_argument("copy_to_table", f"save_mode is append, overwrite, ignore: {mode!r}")
    chosen.write.mode(mode).saveAsTable(str(given["new_table"]))
    yield (0,)


def _copy_to_view(table: SparkTable, given: Given) -> Rows:
    rows, name = _read_for_copy(table, given), str(given["view_name"])
    make = {
        (False, False): rows.createTempView,
        (False, True): rows.createOrReplaceTempView,
        (True, False): rows.createGlobalTempView,
        (True, True): rows.createOrReplaceGlobalTempView,
    }
    make[bool(given["global"]), bool(given["replace"])](name)
    yield (0,)


_PLANS: Final = {
    "compact": (Action.COMPACTION,),
    "cluster": (Action.CLUSTERING, Action.REPLACECOMMIT),
}
_TABLE: Final = {"table": REQUIRED}
_EITHER: Final = {"table": None, "path": None}
_LIMITED: Final = {"table": REQUIRED, "limit": 10}
_OF_INSTANT: Final = {**_LIMITED, "instant_time": REQUIRED}
_ARCHIVED: Final = {**_LIMITED, "start_ts": "", "end_ts": ""}
_CLEANS: Final = {**_LIMITED, "showarchived": False, "filter": ""}
_VIEW: Final = {
    **_EITHER,
    "max_instant": "",
    "include_max": False,
    "include_in_flight": False,
    "exclude_compaction": False,
    "limit": 10,
    "path_regex": "ALL_PARTITIONS",
    "filter": "",
}
_TOTALS = (
    "total_bytes_written long, total_files_added long, total_files_updated long, "
    "total_partitions_written long, total_records_written long, "
    "total_update_records_written long, total_errors long"
)
_COMMIT_FILES = (
    "commit_time string, state_transition_time string, action string, partition string, "
    "file_id string, previous_commit string, num_writes long, num_inserts long, "
    "num_deletes long, num_update_writes long, total_errors long, total_log_blocks long, "
    "total_corrupt_log_blocks long, total_rollback_blocks long, total_log_records long, "
    "total_updated_records_compacted long, total_bytes_written long"
)
_SLICE = (
    "partition string, file_id string, base_instant string, data_file string, "
    "data_file_size long, num_delta_files long, total_delta_file_size long, "
)
_COMPACTION = "timestamp string, operation_size int, state string"
_CLUSTERING = "timestamp string, input_group_size int, state string, involved_partitions string"

_TIME_TRAVEL = "SELECT ... TIMESTAMP AS OF reads old states"
#: Arguments of Hudi that keep their defaults, and what to do instead.
UNSUPPORTED: Final = {
    "predicate": "use selected_partitions",
    "max_instant": _TIME_TRAVEL,
    "include_max": _TIME_TRAVEL,
    "include_in_flight": "writers that are not done list their files in hoodoo writers TABLE",
    "exclude_compaction": "leave it out",
    "merge": "show_fsview_all shows slices one by one",
    "enable_metadata": "set hoodie.metadata.enable for the table",
    "schedule_in_line": "leave it out",
    "read_only": "leave it out",
    "delete_request_instant_file": "leave it out: a cancelled plan is deleted",
}

#: Arguments that are options of the call.
OPTIONS_OF: Final = {
    "run_clean": {
        "clean_policy": "hoodie.clean.policy",
        "retain_commits": "hoodie.clean.commits.retained",
        "hours_retained": "hoodie.clean.hours.retained",
        "file_versions_retained": "hoodie.clean.fileversions.retained",
        "trigger_strategy": "hoodie.clean.trigger.strategy",
        "trigger_max_commits": "hoodie.clean.trigger.max.commits",
    },
    "run_clustering": {
        "selected_partitions": "hoodie.clustering.plan.strategy.partition.selected",
        "partition_regex_pattern": "hoodie.clustering.plan.strategy.partition.regex.pattern",
    },
    "run_ttl": {
        "ttl_policy": "hoodie.partition.ttl.management.strategy.type",
        "retain_days": "hoodie.partition.ttl.strategy.days.retain",
    },
    "archive_commits": {
        "min_commits": "hoodie.keep.min.commits",
        "max_commits": "hoodie.keep.max.commits",
        "retain_commits": "hoodie.clean.commits.retained",
    },
}

PROCEDURES: Final[Mapping[str, Procedure]] = {
    # ---- Commits
    "show_commits": Procedure(
        arguments=_LIMITED,
        columns=f"commit_time string, state_transition_time string, action string, {_TOTALS}",
        run=shown_rows.show_commits,
    ),
    "show_archived_commits": Procedure(
        arguments=_ARCHIVED,
        columns=f"commit_time string, state_transition_time string, {_TOTALS}",
        run=shown_rows.show_archived_commits,
    ),
    "show_commits_metadata": Procedure(
        arguments=_LIMITED, columns=_COMMIT_FILES, run=shown_rows.show_commits_metadata
    ),
    "show_archived_commits_metadata": Procedure(
        arguments=_ARCHIVED, columns=_COMMIT_FILES, run=shown_rows.show_archived_commits_metadata
    ),
    "show_commit_files": Procedure(
        arguments=_OF_INSTANT,
        columns="action string, partition_path string, file_id string, previous_commit string, "
        "total_records_updated long, total_records_written long, total_bytes_written long, "
        "total_errors long, file_size long",
        run=shown_rows.show_commit_files,
    ),
    "show_commit_partitions": Procedure(
        arguments=_OF_INSTANT,
        columns="action string, partition_path string, total_files_added long, "
        "total_files_updated long, total_records_inserted long, total_records_updated long, "
        "total_bytes_written long, total_errors long",
        run=shown_rows.show_commit_partitions,
    ),
    "show_commit_write_stats": Procedure(
        arguments=_OF_INSTANT,
        columns="action string, total_bytes_written long, total_records_written long, "
        "avg_record_size long",
        run=shown_rows.show_commit_write_stats,
    ),
    "show_commit_extra_metadata": Procedure(
        arguments={"table": REQUIRED, "limit": 100, "instant_time": None, "metadata_key": None},
        columns="instant_time string, action string, metadata_key string, metadata_value string",
        run=shown_rows.show_commit_extra_metadata,
    ),
    "stats_wa": Procedure(
        arguments=_LIMITED,
        columns="commit_time string, total_upserted long, total_written long, "
        "write_amplification_factor string",
        run=shown_rows.stats_wa,
    ),
    # ---- Instants
    "show_timeline": Procedure(
        arguments={
            **_EITHER,
            "limit": 20,
            "showarchived": False,
            "filter": "",
            "starttime": "",
            "endtime": "",
        },
        columns="instant_time string, action string, state string, requested_time string, "
        "inflight_time string, completed_time string, timeline_type string, rollback_info string",
        run=shown_rows.show_timeline,
    ),
    "show_rollbacks": Procedure(
        arguments=_LIMITED,
        columns="instant string, rollback_instant string, total_files_deleted int, "
        "time_taken_in_millis long, total_partitions int",
        run=shown_rows.show_rollbacks,
    ),
    "show_rollback_detail": Procedure(
        arguments=_OF_INSTANT,
        columns="instant string, rollback_instant string, partition string, deleted_file string, "
        "succeeded boolean",
        run=shown_rows.show_rollback_detail,
    ),
    "rollback_to_instant": Procedure(
        arguments={"table": REQUIRED, "instant_time": REQUIRED},
        columns="rollback_result boolean",
        run=_rollback,
    ),
    "show_cleans": Procedure(
        arguments=_CLEANS,
        columns="clean_time string, state_transition_time string, action string, "
        "start_clean_time string, time_taken_in_millis long, total_files_deleted int, "
        "earliest_commit_to_retain string, last_completed_commit_timestamp string, version int",
        run=shown_rows.show_cleans,
    ),
    "show_cleans_metadata": Procedure(
        arguments=_CLEANS,
        columns="clean_time string, state_transition_time string, action string, "
        "start_clean_time string, partition_path string, policy string, "
        "delete_path_patterns int, success_delete_files int, failed_delete_files int, "
        "is_partition_deleted boolean, time_taken_in_millis long, total_files_deleted int",
        run=shown_rows.show_cleans_metadata,
    ),
    "show_clean_plans": Procedure(
        arguments=_CLEANS,
        columns="plan_time string, state string, action string, "
        "earliest_instant_to_retain string, last_completed_commit_timestamp string, "
        "policy string, version int, total_partitions_to_clean int, "
        "total_partitions_to_delete int, extra_metadata string",
        run=shown_rows.show_clean_plans,
    ),
    # ---- Files
    "show_fsview_all": Procedure(
        arguments=_VIEW, columns=f"{_SLICE}delta_files string", run=shown_rows.show_fsview_all
    ),
    "show_fsview_latest": Procedure(
        arguments={**_VIEW, "partition_path": "ALL_PARTITIONS", "merge": True},
        columns=f"{_SLICE}delta_size_compaction_scheduled long, "
        "delta_size_compaction_unscheduled long, "
        "delta_to_base_radio_compaction_scheduled double, "
        "delta_to_base_radio_compaction_unscheduled double, "
        "delta_files_compaction_scheduled string, delta_files_compaction_unscheduled string",
        run=shown_rows.show_fsview_latest,
    ),
    "stats_file_sizes": Procedure(
        arguments={"table": REQUIRED, "partition_path": "", "limit": 10},
        columns="commit_time string, min long, 10th double, 50th double, avg double, "
        "95th double, max long, num_files int, std_dev double",
        run=shown_rows.stats_file_sizes,
    ),
    # ---- Metadata table
    "show_metadata_table_partitions": Procedure(
        arguments={**_EITHER, "filter": ""},
        columns="partition string",
        run=shown_rows.show_metadata_table_partitions,
    ),
    "show_metadata_table_files": Procedure(
        arguments={**_EITHER, "partition": "", "limit": 100, "filter": ""},
        columns="file_path string",
        run=shown_rows.show_metadata_table_files,
    ),
    "show_metadata_table_column_stats": Procedure(
        arguments={**_EITHER, "partition": None, "targetcolumns": None, "filter": ""},
        columns="file_name string, column_name string, min_value string, max_value string, "
        "null_number long",
        run=shown_rows.show_metadata_table_column_stats,
    ),
    "validate_metadata_table_files": Procedure(
        arguments={"table": REQUIRED, "verbose": False},
        columns="partition string, file_name string, is_present_in_fs boolean, "
        "is_present_in_metadata boolean, fs_size long, metadata_size long",
        run=shown_rows.validate_metadata_table_files,
    ),
    "create_metadata_table": Procedure(
        arguments=_TABLE, columns="result string", run=_create_metadata
    ),
    "init_metadata_table": Procedure(
        arguments={"table": REQUIRED, "read_only": False},
        columns="result string",
        run=_create_metadata,
    ),
    "delete_metadata_table": Procedure(
        arguments=_TABLE, columns="result string", run=_delete_metadata
    ),
    # ---- Properties and savepoints
    "show_table_properties": Procedure(
        arguments={**_EITHER, "limit": 10, "filter": ""},
        columns="key string, value string",
        run=_show_table_properties,
    ),
    "show_savepoints": Procedure(
        arguments=_EITHER, columns="savepoint_time string", run=_show_savepoints
    ),
    "create_savepoint": Procedure(
        arguments={"table": None, "commit_time": "", "user": "", "comments": "", "path": None},
        columns="create_savepoint_result boolean",
        run=_create_savepoint,
    ),
    "delete_savepoint": Procedure(
        arguments={"table": None, "instant_time": "", "path": None},
        columns="delete_savepoint_result boolean",
        run=_delete_savepoint,
    ),
    "rollback_to_savepoint": Procedure(
        arguments={"table": None, "instant_time": "", "path": None},
        columns="rollback_savepoint_result boolean",
        run=_restore,
    ),
    # ---- Table services
    "run_compaction": Procedure(
        arguments={
            "op": "run",
            **_EITHER,
            "timestamp": None,
            "options": None,
            "instants": None,
            "limit": None,
        },
        columns=_COMPACTION,
        run=partial(_run_service, service="compact"),
    ),
    "show_compaction": Procedure(
        arguments={**_EITHER, "limit": 20},
        columns=_COMPACTION,
        run=shown_rows.show_compaction,
    ),
    "run_clustering": Procedure(
        arguments={
            **_EITHER,
            "predicate": None,
            "order": None,
            "show_involved_partition": False,
            "op": None,
            "order_strategy": None,
            "options": None,
            "instants": None,
            "selected_partitions": None,
            "partition_regex_pattern": None,
            "limit": None,
        },
        columns=_CLUSTERING,
        run=partial(_run_service, service="cluster"),
    ),
    "show_clustering": Procedure(
        arguments={**_EITHER, "limit": 20, "show_involved_partition": False},
        columns=_CLUSTERING,
        run=shown_rows.show_clustering,
    ),
    "run_clean": Procedure(
        arguments={
            "table": REQUIRED,
            "schedule_in_line": True,
            "clean_policy": None,
            "retain_commits": None,
            "hours_retained": None,
            "file_versions_retained": None,
            "trigger_strategy": None,
            "trigger_max_commits": None,
            "options": None,
        },
        columns="start_clean_time string, time_taken_in_millis long, total_files_deleted int, "
        "earliest_commit_to_retain string, bootstrap_part_metadata string, version int",
        run=_clean,
    ),
    "archive_commits": Procedure(
        arguments={
            **_EITHER,
            "min_commits": 20,
            "max_commits": 30,
            "retain_commits": 10,
            "enable_metadata": True,
        },
        columns="result int",
        run=_archive,
    ),
    "run_ttl": Procedure(
        arguments={"table": REQUIRED, "ttl_policy": None, "retain_days": None, "options": None},
        columns="deleted_partitions string",
        run=_run_ttl,
    ),
    "run_rollback_inflight_tableservice": Procedure(
        arguments={
            **_EITHER,
            "pending_instant": REQUIRED,
            "delete_request_instant_file": False,
        },
        columns="instant string, time_cost string",
        run=_cancel,
    ),
    # ---- Rows
    "drop_partition": Procedure(
        arguments={"table": REQUIRED, "partition": REQUIRED},
        columns="result string",
        run=_drop_partition,
    ),
    "truncate_table": Procedure(
        arguments={"table": REQUIRED, "partitions": None},
        columns="result string, time_cost long",
        run=_truncate,
    ),
    "copy_to_table": Procedure(
        arguments={
            "table": REQUIRED,
            "query_type": "snapshot",
            "new_table": REQUIRED,
            "begin_instance_time": "",
            "end_instance_time": "",
            "as_of_instant": "",
            "save_mode": "overwrite",
            "columns": "",
        },
        columns="status int",
        run=_copy_to_table,
    ),
    "copy_to_temp_view": Procedure(
        arguments={
            "table": REQUIRED,
            "query_type": "snapshot",
            "view_name": REQUIRED,
            "begin_instance_time": "",
            "end_instance_time": "",
            "as_of_instant": "",
            "replace": False,
            "global": False,
        },
        columns="status int",
        run=_copy_to_view,
    ),
}
_AUDIT = "hoodoo keeps no audit log of locks: hoodoo explain TABLE --contention adds up conflicts and waits"
_BOOTSTRAP = "hoodoo reads no bootstrapped tables"
#: Hudi's other procedures, and what does their work.
REFUSED_PROCEDURES: Final[Mapping[str, str]] = {
    "cleanup_audit_lock": _AUDIT,
    "commits_compare": "hoodoo diff TABLE",
    "delete_marker": "markers of dead writers are deleted by their rollback: hoodoo rollback TABLE INSTANT",
    "downgrade_table": "write another table with hoodie.write.table.version=8",
    "export_instants": "hoodoo timeline show TABLE --output json",
    "hdfs_parquet_import": "CREATE TABLE ... USING hudi AS SELECT * FROM parquet.`path`",
    "hive_sync": "a write with hoodie.datasource.hive_sync.enable=true, or hoodoo sync TABLE",
    "partition_bucket_index_manager": "all partitions of a table have the same number of buckets",
    "repair_add_partition_meta": "hoodoo table verify TABLE",
    "repair_corrupted_clean_files": "hoodoo table verify TABLE",
    "repair_deduplicate": "hoodoo table repair-keys TABLE",
    "repair_migrate_partition_meta": "hoodoo table verify TABLE",
    "repair_overwrite_hoodie_props": "hoodoo table show TABLE shows the properties",
    "run_bootstrap": "CREATE TABLE ... USING hudi AS SELECT * FROM parquet.`path`",
    "set_audit_lock": _AUDIT,
    "show_audit_lock_status": _AUDIT,
    "show_bootstrap_mapping": _BOOTSTRAP,
    "show_bootstrap_partitions": _BOOTSTRAP,
    "show_file_status": "hoodoo files TABLE",
    "show_fs_path_detail": "hoodoo files TABLE",
    "show_invalid_parquet": "hoodoo table verify TABLE",
    "show_logfile_metadata": "hoodoo files TABLE",
    "show_logfile_records": "hoodoo read TABLE",
    "show_metadata_column_stats_overlap": "hoodoo metadata status TABLE",
    "show_metadata_table_stats": "hoodoo metadata status TABLE",
    "sync_validate": "hoodoo table verify TABLE",
    "upgrade_table": "hoodoo table upgrade TABLE",
    "validate_audit_lock": _AUDIT,
}
