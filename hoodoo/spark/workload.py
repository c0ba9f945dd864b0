"""The Spark workload: tasks of a cluster tag and write the incoming rows of a DataFrame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from operator import xor
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.types import IntegerType, StructField, StructType

from filegroups.files.rewrite import FileGroupTask, stats_from_json
from filegroups.index import IndexedFile
from filegroups.index.lookup import RecordIndex
from filegroups.keys.bucketing import BucketAssigner, InsertBucket
from filegroups.merge.merging import RELOCATED_COLUMN
from filegroups.schema.schema import TableSchema
from filegroups.writing.workload import NewGroups, NewGroupStats, WorkloadProfile
from filegroups.writing.write_request import RowRules
from hoodoo.spark.attempts import TaskAttempts
from hoodoo.spark.error_transport import collect_dataframe, error_from_rows
from hoodoo.spark.few_rows import source_bytes
from hoodoo.spark.global_index import (
    NUMBER,
    RELOCATED_FROM,
    one_row_a_key,
    with_row_targets,
)
from hoodoo.spark.schema import arrow_schema_of, spark_schema_of
from hoodoo.spark.shuffle_numbers import shuffle_numbers
from hoodoo.spark.skew import in_parts, report_skew, skewed_groups, spread
from hoodoo.spark.tasks import (
    ANSWERS,
    BUCKET_COLUMN,
    CHECKSUM,
    ERROR,
    ERROR_TARGET,
    FILE_ID,
    KEY,
    KEY_HASH,
    LOCATED_KEYS,
    NEW_GROUPS,
    ORDER,
    PARTITION,
    ROWS,
    TARGET,
    AssignBuckets,
    LocateKeys,
    PrepareRows,
    ReadKeys,
    StorageAddress,
    WriteGroups,
    WriteNewGroups,
    prepared_schema,
)
from timeline.errors import InvariantError, UnsafeSetupError
from timeline.model.commit_metadata import FileGroupId, WriteStat
from timeline.ports.ports import Ports
from timeline.properties.setting_enums import BulkInsertSort

# ---- The Spark workload: incoming rows as a DataFrame, written by tasks of a cluster
# Only incoming rows and keys move between hosts. Each task reads the base file of its file
# group, merges and writes by the same function as the local executor, and returns one row with
# the write stats. The contract is ``filegroups.writing.workload.Workload``.

_BROADCAST_ROWS_MAX = 500_000  # keys of so many rows fit into the memory of each executor
_TASKS_PER_CORE = 4
_SMALL_TASKS = 4  # tasks for the found keys of a small batch
_BUCKET_PATH = "_hoodoo_bucket_path"
_SALT_BYTES = 128 << 20  # of the sources, for each task of one partition path
_UNKNOWN_SALTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Checksum:
    """Checksums of counted keys: of those with a file group, and of the others."""

    found: int = 0
    new: int = 0


def _hash_of_keys() -> Any:
    """Return the exclusive or of a key's hash over the rows that a row stands for."""
    return F.expr(f"xxhash64({PARTITION}, {KEY}) * ({ROWS} & 1)")


def _checksum_of_keys() -> Any:
    return F.bit_xor(_hash_of_keys()).alias(CHECKSUM)


def _counts_of_rows() -> tuple[Any, Any]:
    return F.sum(ROWS).alias("n"), F.count("*").alias("kept")


def _xor(checksums: Iterable[int | None]) -> int:
    return reduce(xor, (each or 0 for each in checksums), 0)


class SparkWorkload:
    """
    Rows of one write in a DataFrame.

    Args:
        ports: The table's ports on the driver; each task opens the storage again.
        df: The incoming rows. Changes of rows that were read have the column ``RELOCATED_COLUMN``,
            which marks those that delete their records.
        storage_options: The ``hoodoo.storage.*`` options that tasks need.
        shuffle_tasks: Number of tasks that write file groups; 0 derives it from the cores.
        bulk_insert_tasks: Number of tasks of a bulk insert that distributes its rows; 0 for
            Spark's own.
    """

    tasks_name_files = True

    def __init__(
        self,
        ports: Ports,
        df: Any,
        *,
        storage_options: Mapping[str, str] | None = None,
        shuffle_tasks: int = 0,
        bulk_insert_tasks: int = 0,
    ) -> None:
        self.df = df
        self._spark = df.sparkSession
        self._events = ports.events
        self._attempts = TaskAttempts(self._spark)
        self._address = StorageAddress(
            base_uri=ports.storage.base_uri, options=tuple((storage_options or {}).items())
        )
        self._shuffle_tasks = shuffle_tasks
        self._bulk_insert_tasks = bulk_insert_tasks
        self._marked = RELOCATED_COLUMN in df.columns  # changes of rows that were read
        incoming = arrow_schema_of(df.schema)
        self._schema = pa.schema([each for each in incoming if each.name != RELOCATED_COLUMN])
        self._rules: RowRules | None = None
        self._table = TableSchema(arrow=pa.schema([]), avro_json="")  # of the prepared rows
        self._prepared: Any = None
        self._keys: Any = None  # of the prepared rows, cached
        self._all_keys = _Checksum()
        self._checksum: _Checksum | None = None  # of the tagged keys
        self._is_counted = False
        self._counts: dict[str, int] = {}
        self._kept_rows = 0  # prepared rows, of which one may stand for several
        self._updates: Mapping[FileGroupId, int] = {}
        self._sent: Mapping[FileGroupId, int] = {}  # of them, prepared rows
        self._new_rows = 0
        self._hits: Any = None
        self._has_few_hits = True  # so few that each executor may keep them
        self._located: Any = None  # keys with their file groups, of the record index
        self._everywhere: Any = None  # rows of a global index, with the files of their keys
        self._candidates: list[FileGroupId] = []
        self._buckets: tuple[tuple[FileGroupId, int, int, int], ...] = ()
        self._bucket_rows: dict[FileGroupId, int] = {}  # of a bucket index
        self._shares: BucketAssigner | None = None

    @property
    def schema(self) -> pa.Schema:
        """See ``Workload.schema``."""
        return self._schema

    def is_empty(self) -> bool:
        """See ``Workload.is_empty``. Before a count, Spark searches for a first row."""
        if self._is_counted:
            return not self._counts
        return bool(self.df.isEmpty())

    def prepare(self, rules: RowRules, schema: TableSchema) -> None:
        """See ``Workload.prepare``. Each file group's task combines duplicates later."""
        if self._is_counted and (rules, schema.arrow) == (self._rules, self._table.arrow):
            return  # prepared before the table was created
        self.prepare_one_pass(rules, schema)
        self._count()

    def prepare_one_pass(self, rules: RowRules, schema: TableSchema) -> None:
        """See ``OnePassWorkload``. Spark computes nothing yet."""
        self.release()
        self._rules = rules
        self._table = schema

    def write_new_groups(self, groups: NewGroups) -> list[NewGroupStats]:
        """See ``OnePassWorkload``. One job, with one shuffle at most; Spark caches nothing."""
        rules = self._required_rules()
        rows, prepared = self._arranged(rules)
        work = WriteNewGroups(
            address=self._address,
            rules=rules,
            schema=self._table.arrow,
            groups=groups,
            prepared=prepared,
        )
        answers = collect_dataframe(rows.mapInArrow(work, spark_schema_of(NEW_GROUPS)))
        failed = [row[ERROR] for row in answers if row[ERROR] is not None]
        if failed:
            raise error_from_rows(failed)
        return [
            NewGroupStats(
                file_group=FileGroupId(row[PARTITION], row[FILE_ID]),
                rows=row["rows"],
                stats=stats_from_json(row["stats"]),
            )
            for row in answers
        ]

    def _arranged(self, rules: RowRules) -> tuple[Any, bool]:
        """Return the rows as their tasks write them, and whether they are prepared."""
        sort, rows = rules.sort, self._fitted()
        by_key = [KEY] if rules.lookup.whole_table else [PARTITION, KEY]
        if sort is BulkInsertSort.GLOBAL_SORT and not (rules.combine and rules.lookup.whole_table):
            ranges = rows.repartitionByRange(*self._bulk_insert_width, PARTITION, KEY)
            return ranges.sortWithinPartitions(PARTITION, KEY, ORDER), True
        if rules.combine:
            return self._in_few_files(rows, rules).sortWithinPartitions(*by_key, ORDER), True
        if sort is BulkInsertSort.NONE:
            return self.df, False
        if sort is BulkInsertSort.PARTITION_SORT:
            return rows.sortWithinPartitions(PARTITION, KEY), True
        if sort is None:
            return self._in_few_files(rows, rules), True
        by_path = rows.repartition(*self._bulk_insert_width, PARTITION)
        if sort is BulkInsertSort.PARTITION_PATH_REPARTITION_AND_SORT:
            by_path = by_path.sortWithinPartitions(PARTITION)
        return by_path, True

    def _in_few_files(self, rows: Any, rules: RowRules) -> Any:
        """Send the rows of a key to one task, and those of a partition path to few tasks."""
        if rules.lookup.whole_table and rules.combine:
            return rows.repartition(KEY)
        known, is_known = source_bytes(self.df)
        most = self._width(2**31)
        salts = min(most, -(-known // _SALT_BYTES)) if is_known else _UNKNOWN_SALTS
        if not rules.keys.partition_fields:
            salts = max(salts, self._spark.sparkContext.defaultParallelism)
        by = ORDER if rules.keys.automatic else KEY
        salt = F.pmod(F.xxhash64(by), F.lit(max(1, salts)))
        width = [self._shuffle_tasks] if self._shuffle_tasks else []
        return rows.repartition(*width, PARTITION, salt)

    @property
    def _bulk_insert_width(self) -> list[int]:
        return [self._bulk_insert_tasks] if self._bulk_insert_tasks else []

    def _is_deterministic(self) -> bool:
        plan = self.df._jdf.queryExecution().optimizedPlan()  # noqa: SLF001
        return bool(plan.deterministic())

    def _fitted_keys(self, rules: RowRules) -> Any:
        """Return the keys and partition paths, made of the columns that they need."""
        fields = (*rules.keys.record_key_fields, *rules.keys.partition_fields)
        wanted = {part for name in fields for part in (name, name.partition(".")[0])}
        if rules.keys.carried:
            wanted |= {KEY, PARTITION}
        named = [F.col(f"`{name}`") for name in self.df.columns if name in wanted]
        schema = self._table.arrow
        shape = spark_schema_of(prepared_schema(rules, schema, keys_only=True))
        newest = rules.combining_parts(self._table.avro_json)
        keys = PrepareRows(rules=rules, schema=schema, keys_only=True, newest=newest)
        return self.df.select(*named or self.df.columns).mapInArrow(keys, shape)

    def _fitted(self) -> Any:
        """Return the rows in the table's columns, with keys, by one Python task."""
        rules, schema = self._required_rules(), self._table.arrow
        shape = spark_schema_of(prepared_schema(rules, schema, marked=self._marked))
        newest = rules.combining_parts(self._table.avro_json)
        work = PrepareRows(rules=rules, schema=schema, marked=self._marked, newest=newest)
        return self.df.mapInArrow(work, shape)

    def _count(self) -> None:
        """
        Cache the keys of the rows and count them by partition path; rows without one raise here.

        The first pass computes the key columns only. The whole rows are computed when they are
        written, and not cached: that would cost more than the first pass. With a global index
        other columns may decide where a row goes, and a query with random values gives other rows
        the second time. Such rows are cached whole.
        """
        rules = self._required_rules()
        self._prepared = self._fitted()
        if rules.lookup.whole_table and rules.combine:
            self._prepared = one_row_a_key(self._prepared, rules, self._table.avro_json)
        self._keys = self._prepared
        if rules.operation.traits.deletes_keys:
            self._keys = self._prepared = self._fitted_keys(rules)
        elif not rules.lookup.whole_table and self._is_deterministic():
            self._keys = self._fitted_keys(rules)
        try:
            self._keys.persist(StorageLevel.MEMORY_AND_DISK)
            self._counts = self._counted()
        except BaseException:
            self.release()  # else a second call would take the refused rows for prepared ones
            raise
        self._is_counted = True
        if not self._counts:
            self._schema = self._table.arrow

    def _counted(self) -> dict[str, int]:
        counted = collect_dataframe(
            self._keys.groupBy(PARTITION).agg(
                *_counts_of_rows(), F.collect_list(ERROR).alias(ERROR), _checksum_of_keys()
            )
        )
        self._all_keys = _Checksum(new=_xor(row[CHECKSUM] for row in counted))
        failed = [text for row in counted for text in row[ERROR]]
        if failed:
            raise error_from_rows(failed)
        self._kept_rows = sum(row["kept"] for row in counted)
        return {row[PARTITION]: row["n"] for row in counted}

    def partition_paths(self) -> tuple[str, ...]:
        """See ``Workload.partition_paths``."""
        if not self._is_counted:  # prepared for one pass, but the table got rows meanwhile
            self._count()
        return tuple(sorted(self._counts))

    def tag(self, candidates: Mapping[str, Sequence[IndexedFile]]) -> WorkloadProfile:
        """See ``Workload.tag``. Outside: 1 open_input per candidate file, in Spark's tasks."""
        profile = self._tagged_among(candidates)
        self._updates = profile.updates
        return profile

    def locate(self, index: RecordIndex) -> frozenset[FileGroupId]:
        """See ``Workload.locate``. The driver lists the index; tasks read it."""
        self._forget_located()
        rules = self._required_rules()
        work = LocateKeys(
            address=self._address, files=index.files, whole_table=rules.lookup.whole_table
        )
        keys = self._keys.select(PARTITION, KEY).distinct()
        width = self._width(_SMALL_TASKS if self._small else len(work.files.slices))
        located = keys.repartition(width, PARTITION, KEY).mapInArrow(
            work, spark_schema_of(LOCATED_KEYS)
        )
        self._located = located.persist(StorageLevel.MEMORY_AND_DISK)
        named = collect_dataframe(self._located.select(PARTITION, FILE_ID).distinct())
        return frozenset(FileGroupId(row[PARTITION], row[FILE_ID]) for row in named)

    def tag_located(self, candidates: Mapping[str, Sequence[IndexedFile]]) -> WorkloadProfile:
        """See ``Workload.tag_located``. If order decides moves, tasks read the named files."""
        rules = self._required_rules()
        read = rules.moves_rows and bool(rules.ordering_fields)
        profile = self._tagged_among(candidates, None if read else self._located)
        self._updates = profile.updates
        return profile

    def _tagged_among(
        self, candidates: Mapping[str, Sequence[IndexedFile]], located: Any = None
    ) -> WorkloadProfile:
        self._forget_hits()
        self._shares = None
        rules = self._required_rules()
        files = [
            (path, each)
            for path, some in candidates.items()
            if path in self._counts or rules.lookup.whole_table
            for each in some
        ]
        if not files:
            self._checksum = self._all_keys
            return WorkloadProfile(inserts=dict(self._counts))
        self._candidates = [FileGroupId(path, each.file_id) for path, each in files]
        if located is None:
            held = self._keys_of(files, rules)
        else:
            numbers = [
                (number, group.partition_path, group.file_id)
                for number, group in enumerate(self._candidates)
            ]
            named = self._spark.createDataFrame(
                numbers, f"number int, {PARTITION} string, {FILE_ID} string"
            )
            held = located.join(F.broadcast(named), [PARTITION, FILE_ID]).drop(FILE_ID)
        if rules.lookup.whole_table:
            self._everywhere = with_row_targets(self._prepared, held, rules, small=self._small)
            self._everywhere.persist(StorageLevel.MEMORY_AND_DISK)
            self._checksum = None
            return self._counted_everywhere()
        wanted = self._keys.select(PARTITION, KEY)
        if not self._small:
            wanted = wanted.distinct()  # many rows of one key would fill one task
        matching = held.join(self._shared(wanted), [PARTITION, KEY], "left_semi")
        if self._small:
            # A cached result keeps the shuffle's partitions: by default 200 with a few keys each.
            matching = matching.repartition(self._width(_SMALL_TASKS), PARTITION, KEY)
        # A key in several file groups goes to the first of them, as in ``LocalWorkload``.
        found = matching.groupBy(PARTITION, KEY).agg(F.min("number").alias(NUMBER))
        self._hits = found.persist(StorageLevel.MEMORY_AND_DISK)
        self._has_few_hits = self._small or self._count_of_hits() <= _BROADCAST_ROWS_MAX
        counted = collect_dataframe(
            self._tagged(self._keys)
            .groupBy(PARTITION, NUMBER)
            .agg(*_counts_of_rows(), _checksum_of_keys())
        )
        self._checksum = _Checksum(
            found=_xor(row[CHECKSUM] for row in counted if row[NUMBER] is not None),
            new=_xor(row[CHECKSUM] for row in counted if row[NUMBER] is None),
        )
        updates: Counter[FileGroupId] = Counter()  # a file group may be a candidate twice
        sent: Counter[FileGroupId] = Counter()
        for row in counted:
            if row[NUMBER] is not None:
                updates[self._candidates[row[NUMBER]]] += row["n"]
                sent[self._candidates[row[NUMBER]]] += row["kept"]
        self._sent = sent
        return WorkloadProfile(
            inserts={row[PARTITION]: row["n"] for row in counted if row[NUMBER] is None},
            updates=updates,
        )

    def _keys_of(self, files: Sequence[tuple[str, IndexedFile]], rules: RowRules) -> Any:
        """Return the keys of the files with their numbers, read by tasks."""
        named = self._spark.createDataFrame(
            [(number, path, each.path) for number, (path, each) in enumerate(files)],
            "number int, partition_path string, path string",
        ).repartition(self._width(len(files)))
        merged = {n: each.merged for n, (_, each) in enumerate(files) if each.merged is not None}
        reading = ReadKeys(
            address=self._address,
            virtual_keys=rules.keys.virtual,
            schema=self._table.arrow,
            # The table's own values decide whether a row may move.
            ordering=rules.ordering_fields if rules.moves_rows else (),
            merged=merged,
        )
        return named.mapInArrow(reading, spark_schema_of(reading.answers))

    def _counted_everywhere(self) -> WorkloadProfile:
        grouped = self._everywhere.groupBy(PARTITION, NUMBER, RELOCATED_FROM)
        inserts: Counter[str] = Counter()
        updates: Counter[FileGroupId] = Counter()
        for row in collect_dataframe(grouped.agg(F.count("*").alias("n"))):
            if row[NUMBER] is None:
                inserts[row[PARTITION]] += row["n"]
            for number in (row[NUMBER], row[RELOCATED_FROM]):
                if number is not None:
                    updates[self._candidates[number]] += row["n"]
        self._sent = updates
        return WorkloadProfile(inserts=inserts, updates=updates)

    def count_by_bucket(self, shares: BucketAssigner) -> Mapping[tuple[str, int], int]:
        """See ``Workload.count_by_bucket``. The rows stay on the cluster; only counts travel."""
        self._shares = shares
        new = self._tagged(self._keys).where(F.col(NUMBER).isNull()).select(PARTITION, KEY, ROWS)
        new = self._with_bucket_column(new)
        counted = collect_dataframe(new.groupBy(PARTITION, BUCKET_COLUMN).agg(*_counts_of_rows()))
        return {(row[PARTITION], row[BUCKET_COLUMN]): row["n"] for row in counted}

    def assign(self, buckets: Sequence[InsertBucket], file_ids: Mapping[int, str]) -> None:
        """See ``Workload.assign``. The hash of the record key, weighted by bucket rows, decides."""
        self._new_rows = sum(bucket.rows for bucket in buckets)
        if self._shares is not None:
            self._bucket_rows = {
                FileGroupId(bucket.partition_path, file_ids[bucket.number]): bucket.rows
                for bucket in buckets
            }
            self._buckets = tuple(
                (
                    FileGroupId(bucket.partition_path, file_ids[bucket.number]),
                    bucket.weight or 0,
                    0,
                    0,
                )
                for bucket in buckets
            )
            return
        shares: dict[str, list[InsertBucket]] = {}
        for bucket in buckets:
            shares.setdefault(bucket.partition_path, []).append(bucket)
        ranges: list[tuple[FileGroupId, int, int, int]] = []
        for path, own in shares.items():
            ends = list(accumulate(bucket.rows for bucket in own))
            ranges.extend(
                (FileGroupId(path, file_ids[bucket.number]), end - bucket.rows, end, ends[-1])
                for bucket, end in zip(own, ends, strict=True)
            )
        self._buckets = tuple(ranges)

    def precompute(self, tasks: Sequence[FileGroupTask]) -> None:
        """Do nothing, because the cluster has the rows and computes their values."""

    def rewrite(self, tasks: Sequence[FileGroupTask]) -> list[tuple[WriteStat, ...]]:
        """See ``Workload.rewrite``."""
        if not tasks:
            return []
        groups = [task.file_group for task in tasks]
        pieces = self._pieces(tasks)
        count = sum(map(len, pieces))
        width = self._width(count)
        free = iter(shuffle_numbers(count, width))
        numbers = [tuple(next(free) for _ in some) for some in pieces]
        targets = {group: own[0] for group, own in zip(groups, numbers, strict=True)}
        texts = {
            number: piece.to_json()
            for own, some in zip(numbers, pieces, strict=True)
            for number, piece in zip(own, some, strict=True)
        }
        work = WriteGroups(address=self._address, rules=self._required_rules(), tasks=texts)
        shared = {own[0]: own for own in numbers if len(own) > 1}
        answers = collect_dataframe(
            self._routed(targets)
            .withColumn(TARGET, spread(F.col(TARGET), KEY, shared))
            .repartition(width, TARGET)
            .sortWithinPartitions(TARGET, ORDER)
            .drop(ORDER)
            .mapInArrow(work, spark_schema_of(ANSWERS))
        )
        failed = [row[ERROR] for row in answers if row[ERROR] is not None]
        if failed:
            raise error_from_rows(failed)
        checksum = _xor(row[CHECKSUM] for row in answers)
        self._refuse_other_rows(groups, sum(row["rows"] for row in answers), checksum)
        stats = {row[TARGET]: stats_from_json(row["stats"]) for row in answers}
        return [tuple(one for number in own for one in stats.get(number, ())) for own in numbers]

    def _pieces(self, tasks: Sequence[FileGroupTask]) -> list[list[FileGroupTask]]:
        """
        Return the pieces of each task: several for a skewed file group that gets log files.

        A skewed file group whose base file one task must merge, or whose deletes it must look up,
        is reported.
        """
        found = dict(self._sent) if self._takes_found else {}
        total = sum(found.values()) + self._new_rows
        if self._shares is not None:  # else new rows are spread over file groups by size
            found.update(self._bucket_rows)
        cores = self._spark.sparkContext.defaultParallelism
        skewed = skewed_groups(found, of=total, cores=cores)
        pieces, number = list[list[FileGroupTask]](), len(tasks)
        for task in tasks:
            parts = skewed.get(task.file_group, 0)
            own = in_parts(task, parts, number)
            if parts:
                rows = found[task.file_group]
                report_skew(self._events, task.file_group, rows, of=total, tasks=len(own))
            pieces.append(own)
            number += len(own) - 1
        return pieces

    def _refuse_other_rows(
        self, groups: Sequence[FileGroupId], arrived: int, checksum: int
    ) -> None:
        """
        Refuse a write whose written rows differ from the counted rows in number or in keys.

        Spark computes the rows once for their keys and again to write them, and the result may
        differ. Rows of a partition without counted rows have no file group then, and would be lost.
        """
        found = self._updates if self._takes_found else {}
        counted = sum(found.values()) + self._new_rows
        all_groups = {*found, *(group for group, *_ in self._buckets)}
        same = arrived == counted and self._expected_checksum() in (None, checksum)
        if not same and all_groups.issubset(groups):
            raise UnsafeSetupError(
                "Spark computed other rows when it ran the query again, and nothing was "
                "committed: make the query deterministic, or write its rows to files first: "
                f"counted={counted} written={arrived}",
                kind="other_rows",
                counted=counted,
                written=arrived,
            )

    def _expected_checksum(self) -> int | None:
        """Return the checksum of the rows that have a file group; None if it is not known."""
        known, rules = self._checksum, self._required_rules()
        if known is None or (self._shares is not None and rules.operation.traits.deletes_keys):
            return None
        return (known.found if self._takes_found else 0) ^ (known.new if self._buckets else 0)

    def attempted(self) -> frozenset[str] | None:
        """See ``Workload.attempted``. Spark may repeat tasks, so only markers list all files."""
        self._attempts.wait()
        return None

    def release(self) -> None:
        """See ``Workload.release``."""
        self._forget_hits()
        self._forget_located()
        if self._keys is not None:
            self._keys.unpersist()
        self._keys = self._prepared = None
        self._is_counted = False

    def _routed(self, targets: Mapping[FileGroupId, int]) -> Any:
        """Return the rows of the given file groups with their target number."""
        rows = self._tagged(self._prepared)
        found: Any = F.lit(None).cast("int")
        known = ",".join(str(targets.get(group, -1)) for group in self._candidates)
        # One literal that Spark folds into an array, so the access costs nothing per row.
        known_targets = F.split(F.lit(known), ",").cast("array<int>")
        if self._takes_found:
            found = known_targets[F.col(NUMBER)]
        new: Any = F.lit(None).cast("int")
        if self._buckets:
            rows = self._with_buckets(rows, targets)
            new = F.col("_hoodoo_new")
        target = F.when(F.col(NUMBER).isNotNull(), found).otherwise(new)
        # Rows that do not fit the table show now: the first pass computed their keys only.
        target = F.when(F.col(ERROR).isNotNull(), F.lit(ERROR_TARGET)).otherwise(target)
        routed = rows.withColumn(TARGET, target)
        names = self._prepared.columns
        hashed = _hash_of_keys().alias(KEY_HASH)
        has_target = (F.col(TARGET) >= 0) | (F.col(TARGET) == ERROR_TARGET)
        if self._everywhere is None:
            return routed.where(has_target).select(*names, TARGET, hashed)
        leaving = rows.withColumn(TARGET, known_targets[F.col(RELOCATED_FROM)])
        if self._marked:
            names = [name for name in names if name != RELOCATED_COLUMN]
        mark = F.col(RELOCATED_COLUMN) if self._marked else F.lit(False).alias(RELOCATED_COLUMN)
        return (
            routed.select(*names, TARGET, mark)
            .union(leaving.select(*names, TARGET, F.lit(True).alias(RELOCATED_COLUMN)))
            .where(has_target)
            .select("*", hashed)
        )

    def _with_buckets(self, rows: Any, targets: Mapping[FileGroupId, int]) -> Any:
        buckets = self._spark.createDataFrame(
            [
                (group.partition_path, low, high, total, targets[group])
                for group, low, high, total in self._buckets
                if group in targets
            ],
            f"{_BUCKET_PATH} string, _hoodoo_low long, _hoodoo_high long, "
            "_hoodoo_total long, _hoodoo_new int",
        )
        if self._shares is not None:
            mine = (F.col(PARTITION) == F.col(_BUCKET_PATH)) & (
                F.col(BUCKET_COLUMN) == F.col("_hoodoo_low")
            )
            return self._with_bucket_column(rows).join(F.broadcast(buckets), mine, "left")
        # Rows without keys are distributed by their position, which is unique.
        by = ORDER if self._required_rules().keys.automatic else KEY
        place = F.expr(f"pmod(xxhash64({by}), _hoodoo_total)")
        inside = (
            (F.col(PARTITION) == F.col(_BUCKET_PATH))
            & (place >= F.col("_hoodoo_low"))
            & (place < F.col("_hoodoo_high"))
        )
        return rows.join(F.broadcast(buckets), inside, "left")

    def _with_bucket_column(self, rows: Any) -> Any:
        if self._shares is None:
            raise InvariantError("buckets of rows were requested before they were known; report it")
        shape = StructType([*rows.schema.fields, StructField(BUCKET_COLUMN, IntegerType())])
        return rows.mapInArrow(AssignBuckets(assigner=self._shares), shape)

    def _tagged(self, rows: Any) -> Any:
        """Return prepared rows, each with the number of the candidate file that has its key."""
        if self._everywhere is not None:
            return self._everywhere
        if self._hits is None:
            return rows.withColumn(NUMBER, F.lit(None).cast("int"))
        hits = F.broadcast(self._hits) if self._has_few_hits else self._hits
        return rows.join(hits, [PARTITION, KEY], "left")

    def _count_of_hits(self) -> int:
        (row,) = collect_dataframe(self._hits.agg(F.count("*").alias("n")))
        return int(row["n"])

    def _shared(self, keys: Any) -> Any:
        return F.broadcast(keys) if self._small else keys

    @property
    def _takes_found(self) -> bool:
        return bool(self._candidates) and not self._required_rules().drop_found

    @property
    def _small(self) -> bool:
        return self._kept_rows <= _BROADCAST_ROWS_MAX

    def _width(self, pieces: int) -> int:
        most = self._shuffle_tasks or (
            _TASKS_PER_CORE * self._spark.sparkContext.defaultParallelism
        )
        return max(1, min(pieces, most))

    def _forget_hits(self) -> None:
        if self._hits is not None:
            self._hits.unpersist()
            self._hits = None
        if self._everywhere is not None:
            self._everywhere.unpersist()
            self._everywhere = None
        self._candidates = []

    def _forget_located(self) -> None:
        if self._located is not None:
            self._located.unpersist()
            self._located = None

    def _required_rules(self) -> RowRules:
        if self._rules is None:
            raise InvariantError("a workload was used before it was prepared; report it")
        return self._rules
