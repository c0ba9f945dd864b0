"""
The closed sets of names that a setting may have.

Java class names among them are only compared as texts; no class is loaded by such a name.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class FailedWritesPolicy(Enum):
    """When a failed write is rolled back."""

    EAGER = "EAGER"
    LAZY = "LAZY"
    NEVER = "NEVER"


class CommitLockMode(Enum):
    """When a commit takes the lock: always, after two lost slots, never."""

    LOCK = "lock"
    AUTO = "auto"
    NONE = "none"


class ForeignWriters(Enum):
    """Whether engines that do not know slots write the table, too (FOR-1)."""

    NONE = "none"
    EXPECTED = "expected"


_UPDATES: Final = "org.apache.hudi.client.clustering.update.strategy."
_MARKERS: Final = "org.apache.hudi.table.marker."


class ClusteringUpdates(Enum):
    """How a write treats a file group of a pending clustering (CL-2)."""

    # the write continues, the clustering leaves it out
    ALLOW = f"{_UPDATES}SparkAllowUpdateStrategy"
    REJECT = f"{_UPDATES}SparkRejectUpdateStrategy"  # the write is rejected


class EarlyDetection(Enum):
    """What a write checks before it writes files; Hudi's classes compare announcements."""

    PUBLISHED = "published"
    ANNOUNCED = "announced"
    SIMPLE_MARKERS = f"{_MARKERS}SimpleDirectMarkerBasedDetectionStrategy"
    LOCKED_MARKERS = f"{_MARKERS}SimpleTransactionDirectMarkerBasedDetectionStrategy"
    SERVER_MARKERS = (
        "org.apache.hudi.timeline.service.handlers.marker.AsyncTimelineServerBasedDetectionStrategy"
    )


class Durability(Enum):
    """Whether a commit survives a power cut (LOC-2)."""

    STRICT = "strict"
    RELAXED = "relaxed"


class IndexType(Enum):
    """How rows find their file group; all are exact. ``RECORD_INDEX`` is the global record index."""

    SIMPLE = "SIMPLE"
    BLOOM = "BLOOM"
    GLOBAL_SIMPLE = "GLOBAL_SIMPLE"
    GLOBAL_BLOOM = "GLOBAL_BLOOM"
    BUCKET = "BUCKET"
    RECORD_INDEX = "RECORD_INDEX"
    GLOBAL_RECORD_LEVEL_INDEX = "GLOBAL_RECORD_LEVEL_INDEX"
    RECORD_LEVEL_INDEX = "RECORD_LEVEL_INDEX"


#: Indexes with which a key is unique in the whole table, not in its partition alone.
GLOBAL_INDEXES: Final = frozenset(
    {
        IndexType.GLOBAL_SIMPLE,
        IndexType.GLOBAL_BLOOM,
        IndexType.RECORD_INDEX,
        IndexType.GLOBAL_RECORD_LEVEL_INDEX,
    }
)
#: Indexes that are a partition of the metadata table.
RECORD_INDEXES: Final = frozenset(
    {
        IndexType.RECORD_INDEX,
        IndexType.GLOBAL_RECORD_LEVEL_INDEX,
        IndexType.RECORD_LEVEL_INDEX,
    }
)


class BloomType(Enum):
    """Form of the bloom filter in a base file's footer."""

    DYNAMIC_V0 = "DYNAMIC_V0"
    SIMPLE = "SIMPLE"


class InsertDuplicates(Enum):
    """How an insert treats keys that the table has."""

    NONE = "none"
    DROP = "drop"
    FAIL = "fail"


class SqlInsertMode(Enum):
    """How INSERT INTO of SQL treats keys that the table has, by Hudi's older option."""

    UPSERT = "upsert"
    STRICT = "strict"
    NON_STRICT = "non-strict"


class BulkInsertSort(Enum):
    """How a bulk insert distributes and sorts its rows before it writes them (Hudi's modes)."""

    NONE = "NONE"
    GLOBAL_SORT = "GLOBAL_SORT"
    PARTITION_SORT = "PARTITION_SORT"
    PARTITION_PATH_REPARTITION = "PARTITION_PATH_REPARTITION"
    PARTITION_PATH_REPARTITION_AND_SORT = "PARTITION_PATH_REPARTITION_AND_SORT"

    @property
    def by_key(self) -> bool:
        """Whether rows are sorted by partition path and record key."""
        return self in (BulkInsertSort.GLOBAL_SORT, BulkInsertSort.PARTITION_SORT)


class OverwriteMode(Enum):
    """What save mode overwrite replaces: the whole table, or the partitions of the new rows."""

    STATIC = "STATIC"
    DYNAMIC = "DYNAMIC"


class QueryType(Enum):
    """Which rows a read returns."""

    SNAPSHOT = "snapshot"
    READ_OPTIMIZED = "read_optimized"
    INCREMENTAL = "incremental"


class IncrementalFormat(Enum):
    """The rows at the end of the range, or every change in it."""

    LATEST_STATE = "latest_state"
    CDC = "cdc"


class LogFormat(Enum):
    """The format of data blocks in a log file (fmt 5.4); readers accept both."""

    PARQUET = "parquet"
    AVRO = "avro"


class BucketEngine(Enum):
    """How hashes become buckets, spelled as in ``hoodie.index.bucket.engine``."""

    SIMPLE = "SIMPLE"
    CONSISTENT_HASHING = "CONSISTENT_HASHING"
