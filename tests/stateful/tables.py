"""Tables with drawn features, in memory or on disk, under a frozen clock."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from filegroups.settings.settings import WriteSettings
from filegroups.table import create_table_files, open_reader
from hoodoo.catalog import new_table_config
from hoodoo.configuration import Layers
from hoodoo.factory import limits_of
from hoodoo.table import Table
from lockproviders.registry import build_lock
from tests.stateful.model import IS_DELETED, Model
from tests.unit.timeline.engine import StillClock
from timeline.ports.ports import Ports, Storage
from timeline.system import NullEvents, SystemIds, ThreadExecutor


@dataclass(frozen=True, kw_only=True)
class Features:
    """The features of a table: every field is drawn, and printed when a run fails."""

    appends: bool  # merge-on-read
    version: int = 9
    ordering: tuple[str, ...] = ("ts",)
    by_event: bool = True
    partitioned: bool = True
    hive_style: bool = False
    index: str = "SIMPLE"
    log_format: str = "avro"
    delete_column: bool = False
    fills_small_files: bool = True

    @property
    def everywhere(self) -> bool:
        return self.index.startswith("GLOBAL_")

    @property
    def buckets(self) -> int | None:
        return 2 if self.index == "BUCKET" else None

    @property
    def columns(self) -> list[tuple[str, pa.DataType]]:
        kept = [("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("ts2", pa.int32())]
        kept.append(("v", pa.string()))
        return [*kept, (IS_DELETED, pa.bool_())] if self.delete_column else kept

    @property
    def properties(self) -> dict[str, object]:
        chosen: dict[str, object] = {
            "hoodie.write.table.version": str(self.version),
            "hoodie.datasource.write.table.type": (
                "MERGE_ON_READ" if self.appends else "COPY_ON_WRITE"
            ),
            "hoodie.datasource.write.recordkey.field": "id",
            "hoodie.datasource.write.hive_style_partitioning": str(self.hive_style).lower(),
            "hoodie.table.name": "t",
            "hoodie.index.type": self.index,
            "hoodie.logfile.data.block.format": self.log_format,
            "hoodie.metadata.enable": "false",
            "hoodie.clean.automatic": "false",
            "hoodie.clean.commits.retained": "2",
            "hoodie.archive.automatic": "false",
            "hoodie.keep.min.commits": "3",
            "hoodie.keep.max.commits": "4",
            "hoodie.log.compaction.blocks.threshold": "2",
            "hoodie.index.bloom.num_entries": "50",
            "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
            "hoodie.write.commit.retry.base.ms": "0",
            "hoodie.record.merge.mode": (
                "EVENT_TIME_ORDERING" if self.by_event else "COMMIT_TIME_ORDERING"
            ),
        }
        if self.ordering:
            chosen["hoodie.datasource.write.precombine.field"] = ",".join(self.ordering)
        if self.partitioned:
            chosen["hoodie.datasource.write.partitionpath.field"] = "p"
        if self.buckets:
            chosen["hoodie.bucket.index.num.buckets"] = str(self.buckets)
        if not self.fills_small_files:
            chosen["hoodie.parquet.small.file.limit"] = "0"
        return chosen

    def partition_path(self, value: str) -> str:
        if not self.partitioned:
            return ""
        return f"p={value}" if self.hive_style else value

    def model(self) -> Model:
        return Model(
            ordering=self.ordering,
            by_event=self.by_event,
            appends=self.appends,
            everywhere=self.everywhere,
        )


@st.composite
def features(draw: st.DrawFn, *, appends: bool | None = None) -> Features:
    """Any kind of table that this release writes."""
    logs = draw(st.booleans()) if appends is None else appends
    version = draw(st.sampled_from([9, 8]))
    orderings = [("ts",), ("ts", "ts2")] if version == 9 else [("ts",)]
    by_event = draw(st.booleans())
    indexes = ["SIMPLE", "BLOOM", "BUCKET"]
    if not logs:  # a global index does not read logs yet
        indexes += ["GLOBAL_SIMPLE", "GLOBAL_BLOOM"]
    return Features(
        appends=logs,
        version=version,
        by_event=by_event,
        ordering=draw(st.sampled_from(orderings if by_event else [*orderings, ()])),
        partitioned=draw(st.booleans()),
        hive_style=draw(st.booleans()),
        index=draw(st.sampled_from(indexes)),
        log_format=draw(st.sampled_from(["avro", "parquet"])),
        delete_column=draw(st.booleans()),
        fills_small_files=draw(st.booleans()),
    )


class CountedIds(SystemIds):
    """Names that are equal in every run: a failing run fails again."""

    def __init__(self, application: str, first: int) -> None:
        super().__init__(application)
        self._next = first

    def uuid(self) -> str:
        self._next += 1
        return str(uuid.UUID(int=self._next * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 128)))

    def jitter(self) -> float:
        return 0.0


def world_of(storage: Storage, application: str, clock: StillClock, first_id: int) -> Ports:
    ids, events = CountedIds(application, first_id), NullEvents()
    executor = ThreadExecutor(1, events=events)
    lock: Any = build_lock(
        {},
        storage=storage,
        clock=clock,
        ids=ids,
        events=events,
        executor=executor,
        table_identity=storage.base_uri,
    )
    return Ports(storage=storage, clock=clock, ids=ids, events=events, executor=executor, lock=lock)


def create(storage: Storage, chosen: Features, clock: StillClock) -> Table:
    """As ``hoodoo.create_table`` does, over ports of our own."""
    layers = Layers(code=chosen.properties)
    properties = layers.load()
    settings = WriteSettings.from_properties(properties)
    limits = limits_of(settings, properties)
    planned = new_table_config("t", settings, pa.schema(chosen.columns))
    context = create_table_files(world_of(storage, "first", clock, 0), planned.raw, limits).context
    return Table(context, layers.load(context.config.raw), settings)


def open_again(
    storage: Storage, chosen: Features, clock: StillClock, *, name: str, first_id: int
) -> Table:
    """One more handle, as ``hoodoo.open_table`` makes it."""
    layers = Layers(code=chosen.properties)
    properties = layers.load()
    settings = WriteSettings.from_properties(properties)
    limits = limits_of(settings, properties)
    context = open_reader(world_of(storage, name, clock, first_id), limits).context
    return Table(context, layers.load(context.config.raw), settings)
