"""hoodoo on Spark: the session and the DataFrames of Hudi's adapter. options: index."""

from __future__ import annotations

import shutil
from typing import Any

from pfbench import data

import hoodoo
import hoodoo.spark
from adapters.spark_common import SparkAdapter

FORMAT = "hoodoo"


class HoodooSpark(SparkAdapter):
    """The writes and reads of ``protocol.Adapter`` by DataFrames, as a Hudi job makes them."""

    name = "hoodoo-spark"

    def start(self) -> dict[str, Any]:
        """Start a session without jars."""
        told = super().start()
        hoodoo.spark.install(self.spark)
        return told

    def opts(self, table: str, mode: str, key: str = "id", part: str = "part", by: str = "ts"):
        """The options of a Hudi job."""
        merges = mode.startswith("mor")
        found = {
            "hoodie.table.name": table.strip("_").replace("-", "_"),
            "hoodie.datasource.write.recordkey.field": key,
            "hoodie.datasource.write.partitionpath.field": part,
            "hoodie.datasource.write.precombine.field": by,
            "hoodie.datasource.write.table.type": "MERGE_ON_READ" if merges else "COPY_ON_WRITE",
        }
        if mode == "cdf":
            found["hoodie.table.cdc.enabled"] = "true"
        if self.options.get("index"):
            found["hoodie.index.type"] = self.options["index"]
            found["hoodie.bucket.index.num.buckets"] = "1"
        return found

    def save(self, df: Any, table: str, options: dict[str, str], operation: str, mode: str) -> None:
        """One commit."""
        options = {**options, "hoodie.datasource.write.operation": operation}
        df.write.format(FORMAT).options(**options).mode(mode).save(self.path(table))

    def load(self, table, src, mode="cow", key="id", part="part", ordering="ts"):
        shutil.rmtree(self.path(table), ignore_errors=True)
        df = self.source(src)
        if src == "flights":
            df = df.drop("_")
        options = self.opts(table, mode, key, part, ordering)
        self.save(self.spread(df, part), table, options, "bulk_insert", "overwrite")
        return {}

    def upsert(self, table, src, mode="cow"):
        self.save(self.source(src), table, self.opts(table, mode), "upsert", "append")
        return {}

    def append(self, table, src):
        df = self.spread(self.source(src), "part")
        self.save(df, table, self.opts(table, "cow"), "bulk_insert", "append")
        return {}

    def sql_name(self, table):
        return f"{FORMAT}.`{self.path(table)}`"

    def df(self, table):
        return self.spark.read.format(FORMAT).load(self.path(table))

    def read_optimized(self, table):
        reader = self.spark.read.format(FORMAT)
        bases = reader.option("hoodie.datasource.query.type", "read_optimized")
        r = bases.load(self.path(table)).selectExpr("count(*) n", "sum(amount) s").collect()[0]
        return {"rows": r["n"], "sum": r["s"]}

    def compact(self, table):
        options = {"hoodie.compact.inline.max.delta.commits": "1"}
        with hoodoo.spark.table(self.spark, self.path(table), options) as opened:
            return {"ran": opened.services.compact() is not None}

    def cluster(self, table, how, cols, target):
        options = {
            "hoodie.clustering.plan.strategy.target.file.max.bytes": str(target),
            "hoodie.layout.optimize.strategy": "z-order" if how == "zorder" else "linear",
            "hoodie.clustering.plan.strategy.sort.columns": ",".join(cols),
            "hoodie.clustering.plan.strategy.max.num.groups": "1000",
        }
        with hoodoo.spark.table(self.spark, self.path(table), options) as opened:
            return {"ran": opened.services.cluster() is not None}

    def mark(self, table):
        with hoodoo.open_table(self.path(table)) as opened:
            times = [one.completion_time for one in opened.timeline if one.completion_time]
        return {"mark": max(times)}

    def changes(self, table, mark, kind="append"):
        reader = self.spark.read.format(FORMAT).option(
            "hoodie.datasource.query.type", "incremental"
        )
        df = reader.option("hoodie.datasource.read.begin.instanttime", mark).load(self.path(table))
        return {"rows": self.force(df)["n"]}

    def feed(self, table, mark):
        reader = self.spark.read.format(FORMAT).option(
            "hoodie.datasource.query.type", "incremental"
        )
        reader = reader.option("hoodie.datasource.query.incremental.format", "cdc")
        df = reader.option("hoodie.datasource.read.begin.instanttime", mark).load(self.path(table))
        after = (
            df.where("after is not null")
            .selectExpr(f"from_json(after, '{data.SPARK_SCHEMA}') a")
            .select("a.*")
        )
        return {"rows": self.force(after)["n"]}

    def create_small(self, table, mode="cow"):
        shutil.rmtree(self.path(table), ignore_errors=True)
        self.save_small(table, {"lo": 0, "n": 100, "part": "p00"}, "bulk_insert", "overwrite", mode)
        return {}

    def save_small(self, table, batch, operation, mode="append", table_type="cow"):
        """One small commit."""
        self.save(self.small_df(batch), table, self.opts(table, table_type), operation, mode)

    def small_append(self, table, batch):
        self.save_small(table, batch, "bulk_insert")

    def small_upsert(self, table, batch):
        self.save_small(table, batch, "upsert")

    def open_snapshot(self, table):
        return {"files": len(self.df(table).inputFiles())}


ADAPTER = HoodooSpark
