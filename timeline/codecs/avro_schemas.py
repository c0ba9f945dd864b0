"""
The Avro schemas of Hudi's instant files, as data (format 3).

Record full names, field names and their order are Hudi's, because Java resolves them into generated
classes by name. They are equal in files of table versions 8 and 9. Strings are plain: Java's
`avro.java.string` property is optional (tested, format 3).
"""

from __future__ import annotations

from typing import Any, Final

__all__ = [
    "CLEANER_PLAN",
    "CLEAN_METADATA",
    "COMMIT_METADATA",
    "COMPACTION_PLAN",
    "NAMESPACE",
    "REPLACE_COMMIT_METADATA",
    "REQUESTED_REPLACE_METADATA",
    "RESTORE_METADATA",
    "RESTORE_PLAN",
    "ROLLBACK_METADATA",
    "ROLLBACK_PLAN",
    "SAVEPOINT_METADATA",
    "Schema",
]

Schema = dict[str, Any]

NAMESPACE: Final = "org.apache.hudi.avro.model"


def _array(items: Any) -> Schema:
    return {"type": "array", "items": items}


def _map(values: Any) -> Schema:
    return {"type": "map", "values": values}


def _field(name: str, kind: Any) -> Schema:
    return {"name": name, "type": kind}


def _default(name: str, kind: Any, default: Any) -> Schema:
    return {"name": name, "type": kind, "default": default}


def _maybe(name: str, kind: Any) -> Schema:
    return {"name": name, "type": ["null", kind], "default": None}


def _version(default: int = 1) -> Schema:
    return {"name": "version", "type": ["int", "null"], "default": default}


def _record(name: str, *fields: Schema) -> Schema:
    return {"type": "record", "name": name, "namespace": NAMESPACE, "fields": list(fields)}


_RUNTIME_STATS = _record(
    "HoodieRuntimeStats",
    _maybe("totalScanTime", "long"),
    _maybe("totalCreateTime", "long"),
    _maybe("totalUpsertTime", "long"),
)

_WRITE_STAT = _record(
    "HoodieWriteStat",
    _maybe("fileId", "string"),
    _maybe("path", "string"),
    _maybe("prevCommit", "string"),
    _maybe("numWrites", "long"),
    _maybe("numDeletes", "long"),
    _maybe("numUpdateWrites", "long"),
    _maybe("totalWriteBytes", "long"),
    _maybe("totalWriteErrors", "long"),
    _maybe("partitionPath", "string"),
    _maybe("totalLogRecords", "long"),
    _maybe("totalLogFiles", "long"),
    _maybe("totalUpdatedRecordsCompacted", "long"),
    _maybe("numInserts", "long"),
    _maybe("totalLogBlocks", "long"),
    _maybe("totalCorruptLogBlock", "long"),
    _maybe("totalRollbackBlocks", "long"),
    _maybe("fileSizeInBytes", "long"),
    _maybe("logVersion", "int"),
    _maybe("logOffset", "long"),
    _maybe("baseFile", "string"),
    _maybe("logFiles", _array("string")),
    _maybe("cdcStats", _map("long")),
    _maybe("prevBaseFile", "string"),
    _maybe("minEventTime", "long"),
    _maybe("maxEventTime", "long"),
    _maybe("runtimeStats", _RUNTIME_STATS),
    _maybe("totalLogFilesCompacted", "long"),
    _maybe("totalLogReadTimeMs", "long"),
    _maybe("totalLogSizeCompacted", "long"),
    _maybe("tempPath", "string"),
    _maybe("numUpdates", "long"),
)

_COMMIT_FIELDS = (
    _maybe("partitionToWriteStats", _map(_array(_WRITE_STAT))),
    _maybe("compacted", "boolean"),
    _maybe("extraMetadata", _map("string")),
    _version(),
    _maybe("operationType", "string"),
)

COMMIT_METADATA: Final = _record("HoodieCommitMetadata", *_COMMIT_FIELDS)

REPLACE_COMMIT_METADATA: Final = _record(
    "HoodieReplaceCommitMetadata",
    *_COMMIT_FIELDS,
    _maybe("partitionToReplaceFileIds", _map(_array("string"))),
)

_ACTION_INSTANT = _record(
    "HoodieActionInstant",
    _field("timestamp", "string"),
    _field("action", "string"),
    _field("state", "string"),
)

_CLEAN_FILE_INFO = _record(
    "HoodieCleanFileInfo",
    _maybe("filePath", "string"),
    _maybe("isBootstrapBaseFile", "boolean"),
)

CLEANER_PLAN: Final = _record(
    "HoodieCleanerPlan",
    _maybe("earliestInstantToRetain", _ACTION_INSTANT),
    _default("lastCompletedCommitTimestamp", "string", ""),
    _field("policy", "string"),
    _maybe("filesToBeDeletedPerPartition", _map(_array("string"))),
    _version(),
    _maybe("filePathsToBeDeletedPerPartition", _map(_array(_CLEAN_FILE_INFO))),
    _maybe("partitionsToBeDeleted", _array("string")),
    _maybe("extraMetadata", _map("string")),
)

_CLEAN_PARTITION_METADATA = _record(
    "HoodieCleanPartitionMetadata",
    _field("partitionPath", "string"),
    _field("policy", "string"),
    _field("deletePathPatterns", _array("string")),
    _field("successDeleteFiles", _array("string")),
    _field("failedDeleteFiles", _array("string")),
    _maybe("isPartitionDeleted", "boolean"),
)

CLEAN_METADATA: Final = _record(
    "HoodieCleanMetadata",
    _field("startCleanTime", "string"),
    _field("timeTakenInMillis", "long"),
    _field("totalFilesDeleted", "int"),
    _field("earliestCommitToRetain", "string"),
    _default("lastCompletedCommitTimestamp", "string", ""),
    _field("partitionMetadata", _map(_CLEAN_PARTITION_METADATA)),
    _version(),
    _maybe("bootstrapPartitionMetadata", _map("HoodieCleanPartitionMetadata")),
    _maybe("extraMetadata", _map("string")),
)

_INSTANT_INFO = _record(
    "HoodieInstantInfo", _field("commitTime", "string"), _field("action", "string")
)

_ROLLBACK_REQUEST = _record(
    "HoodieRollbackRequest",
    _field("partitionPath", "string"),
    _maybe("fileId", "string"),
    _maybe("latestBaseInstant", "string"),
    _default("filesToBeDeleted", _array("string"), []),
    _maybe("logBlocksToBeDeleted", _map("long")),
)

ROLLBACK_PLAN: Final = _record(
    "HoodieRollbackPlan",
    _maybe("instantToRollback", _INSTANT_INFO),
    _maybe("RollbackRequests", _array(_ROLLBACK_REQUEST)),
    _version(),
)

_ROLLBACK_PARTITION_METADATA = _record(
    "HoodieRollbackPartitionMetadata",
    _field("partitionPath", "string"),
    _field("successDeleteFiles", _array("string")),
    _field("failedDeleteFiles", _array("string")),
    _maybe("rollbackLogFiles", _map("long")),
    _maybe("logFilesFromFailedCommit", _map("long")),
)

ROLLBACK_METADATA: Final = _record(
    "HoodieRollbackMetadata",
    _field("startRollbackTime", "string"),
    _field("timeTakenInMillis", "long"),
    _field("totalFilesDeleted", "int"),
    _field("commitsRollback", _array("string")),
    _field("partitionMetadata", _map(_ROLLBACK_PARTITION_METADATA)),
    _version(),
    _default("instantsRollback", _array(_INSTANT_INFO), []),
)

RESTORE_PLAN: Final = _record(
    "HoodieRestorePlan",
    _default("instantsToRollback", _array(_INSTANT_INFO), []),
    _version(2),
    _maybe("savepointToRestoreTimestamp", "string"),
)

RESTORE_METADATA: Final = _record(
    "HoodieRestoreMetadata",
    _field("startRestoreTime", "string"),
    _field("timeTakenInMillis", "long"),
    _field("instantsToRollback", _array("string")),
    _field("hoodieRestoreMetadata", _map(_array(["null", ROLLBACK_METADATA]))),
    _version(),
    # Only the name here: ROLLBACK_METADATA defines it.
    _default("restoreInstantInfo", _array("HoodieInstantInfo"), []),
)

_SLICE_INFO = _record(
    "HoodieSliceInfo",
    _maybe("dataFilePath", "string"),
    _maybe("deltaFilePaths", _array("string")),
    _field("fileId", ["null", "string"]),
    _maybe("partitionPath", "string"),
    _maybe("bootstrapFilePath", "string"),
    _version(),
)

_CLUSTERING_GROUP = _record(
    "HoodieClusteringGroup",
    _maybe("slices", _array(_SLICE_INFO)),
    _maybe("metrics", _map("double")),
    _default("numOutputFileGroups", ["int", "null"], 1),
    _maybe("extraMetadata", _map("string")),
    _version(),
)

_CLUSTERING_STRATEGY = _record(
    "HoodieClusteringStrategy",
    _maybe("strategyClassName", "string"),
    _maybe("strategyParams", _map("string")),
    _version(),
)

_CLUSTERING_PLAN = _record(
    "HoodieClusteringPlan",
    _maybe("inputGroups", _array(_CLUSTERING_GROUP)),
    _maybe("strategy", _CLUSTERING_STRATEGY),
    _maybe("extraMetadata", _map("string")),
    _version(),
    _maybe("preserveHoodieMetadata", "boolean"),
    _maybe("missingSchedulePartitions", _array("string")),
)

REQUESTED_REPLACE_METADATA: Final = _record(
    "HoodieRequestedReplaceMetadata",
    _maybe("operationType", "string"),
    _maybe("clusteringPlan", _CLUSTERING_PLAN),
    _maybe("extraMetadata", _map("string")),
    _version(),
)

_COMPACTION_OPERATION = _record(
    "HoodieCompactionOperation",
    _field("baseInstantTime", ["null", "string"]),
    _maybe("deltaFilePaths", _array("string")),
    _maybe("dataFilePath", "string"),
    _field("fileId", ["null", "string"]),
    _maybe("partitionPath", "string"),
    _maybe("metrics", _map("double")),
    _maybe("bootstrapFilePath", "string"),
)

_COMPACTION_STRATEGY = _record(
    "HoodieCompactionStrategy",
    _maybe("compactorClassName", "string"),
    _maybe("strategyParams", _map("string")),
    _version(),
)

COMPACTION_PLAN: Final = _record(
    "HoodieCompactionPlan",
    _maybe("operations", _array(_COMPACTION_OPERATION)),
    _maybe("extraMetadata", _map("string")),
    _version(),
    _maybe("strategy", _COMPACTION_STRATEGY),
    _default("preserveHoodieMetadata", ["boolean", "null"], False),
    _maybe("missingSchedulePartitions", _array("string")),
)

_SAVEPOINT_PARTITION_METADATA = _record(
    "HoodieSavepointPartitionMetadata",
    _field("partitionPath", "string"),
    _field("savepointDataFile", _array("string")),
)

SAVEPOINT_METADATA: Final = _record(
    "HoodieSavepointMetadata",
    _field("savepointedBy", "string"),
    _field("savepointedAt", "long"),
    _field("comments", "string"),
    _field("partitionMetadata", _map(_SAVEPOINT_PARTITION_METADATA)),
    _version(),
)
