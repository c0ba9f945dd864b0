"""
One table, three engines: Java Hudi and hudi-rs read and continue tables that hoodoo writes.

Once with table version 9 and Java Hudi 1.2.0, once with version 8 and Java Hudi 1.0.2.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import hudi
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import hoodoo
from tests.interop import flights
from tests.interop.flights import History
from tests.interop.java import JavaOracle
from tests.interop.values import comparable, encoded, same, without_meta
from timeline.errors import InstantNotFoundError

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(900)]

#: Java as one of several writers; alone in its process, so a lock in memory is enough.
JAVA_WRITER = {
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.cleaner.policy.failed.writes": "LAZY",
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.InProcessLockProvider",
    "hoodie.metadata.enable": "false",
    "hoodie.datasource.write.hive_style_partitioning": "true",
    "hoodie.datasource.write.recordkey.field": ",".join(flights.KEY),
    "hoodie.datasource.write.partitionpath.field": "month",
    "hoodie.write.auto.upgrade": "false",
    "hoodie.archive.automatic": "false",
}


@dataclass(frozen=True)
class Pair:
    """A release of Java Hudi and the table of its version that hoodoo made."""

    java: JavaOracle
    history: History

    @property
    def path(self) -> Path:
        return self.history.path

    def copied(self, to: Path) -> Pair:
        """The same over a copy, to write into."""
        path = Path(shutil.copytree(self.path, to / self.path.name))
        return replace(self, history=replace(self.history, path=path))


V9, V8 = ("1.2.0", 9), ("1.0.2", 8)  # releases of Java Hudi and table versions


@pytest.fixture(scope="module", params=[V9, V8], ids=["v9", "v8"])
def made(
    request: pytest.FixtureRequest,
    java_oracle: Callable[..., JavaOracle],
    tmp_path_factory: pytest.TempPathFactory,
) -> Pair:
    release, version = request.param
    history = flights.build(tmp_path_factory.mktemp("made") / f"flights_v{version}", version)
    return Pair(java=java_oracle(release), history=history)


@pytest.fixture
def pair(made: Pair, tmp_path: Path) -> Pair:
    return made.copied(tmp_path)


@pytest.fixture
def ours(pair: Pair) -> Iterator[hoodoo.Table]:
    with flights.opened(pair.path) as table:
        yield table


def test_snapshot_is_the_same_in_ours_java_and_hudi_rs(made: Pair) -> None:
    rows = mine(made.path)
    assert len(rows) > 5_000
    assert_equal(rows, comparable(made.java.read(made.path)))
    assert_equal(rows, by_hudi_rs(made.path))


def test_three_earlier_snapshots_are_the_same(made: Pair) -> None:
    sizes = set()
    # Two writers share those between; after a conflict most was loaded by the last of them.
    for time in (made.history.times[i] for i in (0, -4, -2)):
        rows = mine(made.path, as_of=time)
        sizes.add(len(rows))
        assert_equal(rows, comparable(made.java.read(made.path, as_of=time)))
        assert_equal(rows, by_hudi_rs(made.path, as_of=time))
    assert len(sizes) == 3


def test_incremental_ranges_are_the_same(made: Pair) -> None:
    completions = made.history.completions
    for since, until in (
        (completions[0], completions[4]),
        (completions[4], completions[-2]),
        (completions[-3], completions[-1]),
    ):
        with flights.opened(made.path) as table:
            found = table.changes(since, until, with_hoodie_columns=True).read_all()
        rows = encoded(found)
        assert rows
        # 1.0.2 counts the start of a range in, 1.2.0 and we do not.
        start = since if made.java.version == "1.2.0" else str(int(since) + 1)
        theirs = made.java.read(made.path, incremental=[start, until])
        assert_equal(rows, comparable(theirs))
        assert_equal(rows, by_hudi_rs(made.path, since=since, until=until))


def test_java_lists_our_instants_and_slices(made: Pair) -> None:
    with flights.opened(made.path) as table:
        timeline = [
            {
                "requested": entry.requested_time,
                "completion": entry.completion_time,
                "action": entry.action,
                "state": entry.state.upper(),
            }
            for entry in table.timeline
        ]
        newest = {one.base_file.name for one in table.file_slices() if one.base_file is not None}
    assert made.java.timeline(made.path) == timeline
    theirs = made.java.slices(made.path)
    merged = [one["latest_merged"] for one in theirs if not one["replaced"]]
    assert {one["base_file"] for one in merged if one} == newest


@pytest.mark.parametrize(
    ("made", "index"),
    [
        pytest.param(V9, "BLOOM", id="v9-BLOOM"),
        pytest.param(V9, "SIMPLE", id="v9-SIMPLE", marks=pytest.mark.slow),
        pytest.param(V8, "SIMPLE", id="v8-SIMPLE", marks=pytest.mark.slow),
        pytest.param(V8, "BLOOM", id="v8-BLOOM", marks=pytest.mark.slow),
    ],
    indirect=["made"],
)
def test_java_continues_on_our_table_and_we_on_javas(
    pair: Pair, ours: hoodoo.Table, index: str
) -> None:
    before = ours.to_arrow()
    batch = thousand_rows(before)
    expected = upserted(before, batch)
    crashed = pair.history.crashed

    # Java upserts 1,000 rows: 900 of them are ours already, and its index must find them.
    conf = {**JAVA_WRITER, "hoodie.index.type": index, "hoodie.clean.automatic": "false"}
    pair.java.write(pair.path, flights.spark_rows(batch), conf=conf)
    assert_everybody_reads(pair, expected)

    # Java cleans, and rolls back the write that died here.
    assert crashed in flights.pending(pair.path)
    assert leftovers(pair.path, crashed)
    keep_two = {"hoodie.clean.commits.retained": "2", "hoodie.cleaner.commits.retained": "2"}
    pair.java.service(pair.path, "clean", conf={**JAVA_WRITER, **keep_two})
    assert crashed not in flights.pending(pair.path)
    assert leftovers(pair.path, crashed) == []
    done = [(entry.action, entry.state) for entry in ours.timeline[-2:]]
    assert sorted(done) == [("clean", "completed"), ("rollback", "completed")]
    assert_everybody_reads(pair, expected)
    with pytest.raises(InstantNotFoundError):
        ours.as_of(pair.history.times[1])

    # We continue: slots above instants that have none, on files that Java wrote.
    again = flights.corrected(batch.slice(0, 200), 30.0)
    result = ours.upsert(again)
    assert (result.rows_updated, result.rows_inserted) == (200, 0)
    newest = ours.timeline[-1]
    assert (newest.requested_time, newest.state) == (result.requested_time, "completed")
    assert all(entry.completion_time <= result.completion_time for entry in finished(ours))
    expected = upserted(expected, again)
    assert_everybody_reads(pair, expected)

    # And Java once more, on top of our write.
    last = flights.corrected(batch.slice(150, 100), 7.0)
    pair.java.write(pair.path, flights.spark_rows(last), conf=conf)
    result = ours.delete(batch.slice(0, 10).select(flights.KEY))
    assert result.rows_deleted == 10
    gone = upserted(upserted(expected, last), batch.slice(0, 10), delete=True)
    assert_everybody_reads(pair, gone)


@pytest.mark.parametrize(
    ("made", "form"),
    [
        pytest.param(V9, "TIMELINE_SERVER_BASED", id="v9-listed"),
        pytest.param(V9, "DIRECT", id="v9-direct", marks=pytest.mark.slow),
        pytest.param(V8, "TIMELINE_SERVER_BASED", id="v8-listed", marks=pytest.mark.slow),
        pytest.param(V8, "DIRECT", id="v8-direct", marks=pytest.mark.slow),
    ],
    indirect=["made"],
)
def test_we_continue_on_javas_table_and_roll_its_crash_back(
    made: Pair, tmp_path: Path, form: str
) -> None:
    java, path = made.java, tmp_path / "by_java"
    rows = flights.flights(280)
    conf = {
        **JAVA_WRITER,
        "hoodie.datasource.write.table.type": "COPY_ON_WRITE",
        "hoodie.table.timeline.timezone": "UTC",
        "hoodie.write.markers.type": form,
        "hoodie.embed.timeline.server": "true",
        "hoodie.clean.automatic": "false",
    }
    # Without an ordering field both merge by commit time.
    java.write(path, flights.spark_rows(rows), "bulk_insert", schema=SPARK_SCHEMA, conf=conf)
    java.write(path, flights.spark_rows(flights.corrected(rows.slice(0, 50), 1.0)), conf=conf)
    expected = upserted(rows, flights.corrected(rows.slice(0, 50), 1.0))
    java_pair = replace(made, history=replace(made.history, path=path))
    crashed = crash_of_java(java, path, flights.spark_rows(flights.corrected(rows, 99.0)), conf)
    listed = path / ".hoodie" / ".temp" / crashed / "MARKERS.type"
    assert listed.exists() == (form == "TIMELINE_SERVER_BASED")
    files = leftovers(path, crashed)
    assert files

    with flights.opened(path) as table:
        batch = flights.corrected(thousand_rows(rows).slice(0, 300), 12.0)
        result = table.upsert(batch)
        assert result.rows_updated + result.rows_inserted == batch.num_rows
        expected = upserted(expected, batch)
        assert_everybody_reads(java_pair, expected)
        (undone,) = table.services.rollback_dead_writers()
        assert (undone.target, undone.why) == (crashed, "rolled back")
        assert leftovers(path, crashed) == []
        # RB-10: markers stay until they are old, a woken owner may still write behind them.
        assert (path / ".hoodie" / ".temp" / crashed).exists()
        assert crashed not in flights.pending(path)
        table.delete(rows.slice(100, 40).select(flights.KEY))
        expected = upserted(expected, rows.slice(100, 40), delete=True)
        assert_everybody_reads(java_pair, expected)
        assert java.timeline(path)[-2]["action"] == "rollback"
    java.write(path, flights.spark_rows(flights.corrected(rows.slice(200, 20), 5.0)), conf=conf)
    expected = upserted(expected, flights.corrected(rows.slice(200, 20), 5.0))
    assert_everybody_reads(java_pair, expected)


# ---- the three readers


def mine(path: Path, as_of: str | None = None) -> list[dict[str, Any]]:
    with flights.opened(path) as table:
        at = table.as_of(as_of) if as_of else table.current_state()
        return encoded(at.to_arrow(with_hoodie_columns=True))


def by_hudi_rs(
    path: Path, *, as_of: str | None = None, since: str | None = None, until: str | None = None
) -> list[dict[str, Any]]:
    options = hudi.HudiReadOptions()
    if as_of is not None:
        options = options.with_as_of_timestamp(as_of)
    if since is not None and until is not None:
        options = options.with_query_type(hudi.HudiQueryType.Incremental)
        options = options.with_start_timestamp(since).with_end_timestamp(until)
    batches = hudi.HudiTableBuilder.from_base_uri(str(path)).build().read(options)
    return encoded(pa.Table.from_batches([pa.record_batch(batch) for batch in batches]))


def assert_equal(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    """Without pytest's line by line report, which takes minutes on thousands of rows."""
    if same(one, other):
        return
    differing = [(a, b) for a, b in zip(one, other, strict=False) if a != b]
    pytest.fail(f"{len(one)} rows against {len(other)}; the first difference: {differing[:1]}")


def assert_everybody_reads(pair: Pair, expected: pa.Table) -> None:
    """Ours, Java and hudi-rs show exactly these rows, and each key once."""
    rows = mine(pair.path)
    keys = {(row["_hoodie_partition_path"], row["_hoodie_record_key"]) for row in rows}
    assert len(keys) == len(rows) == expected.num_rows
    assert_equal(without_meta(rows), encoded(expected))
    assert_equal(rows, comparable(pair.java.read(pair.path)))
    assert_equal(rows, by_hudi_rs(pair.path))


# ---- rows


SPARK_SCHEMA = (
    "year int, month int, day int, carrier string, flight int, origin string, dest string, "
    "tailnum string, dep_time bigint, dep_delay double, distance int, time_hour timestamp"
)


def thousand_rows(rows: pa.Table) -> pa.Table:
    """900 rows of the table, spread and corrected, and 100 flights it does not have."""
    step = max(rows.num_rows // 1000, 1)
    spread = rows.take(pa.array(range(0, 1000 * step, step)))
    batch = flights.corrected(spread, 3.0)
    number = pc.add(batch.slice(900).column("flight"), pa.scalar(20_000, pa.int32()))
    new = batch.slice(900)
    new = new.set_column(new.schema.get_field_index("flight"), "flight", number)
    return pa.concat_tables([batch.slice(0, 900), new])


def upserted(rows: pa.Table, batch: pa.Table, *, delete: bool = False) -> pa.Table:
    """The independent computation: an anti join by key, and the batch behind it."""
    keys = list(flights.KEY)
    kept = rows.join(batch.select(keys), keys=keys, join_type="left anti").select(rows.schema.names)
    return kept if delete else pa.concat_tables([kept, batch.select(rows.schema.names)])


# ---- leftovers and crashes


def leftovers(path: Path, requested_time: str) -> list[Path]:
    return sorted(path.rglob(f"*_{requested_time}.parquet"))


def finished(table: hoodoo.Table) -> list[Any]:
    return [entry for entry in table.timeline if entry.completion_time is not None]


def crash_of_java(java: JavaOracle, path: Path, rows: list[dict[str, Any]], conf: Any) -> str:
    """Java dies after its data files: a check before its commit fails, the writer is silent."""
    before = flights.pending(path)
    failing = {
        "hoodie.precommit.validators": (
            "org.apache.hudi.client.validator.SqlQuerySingleResultPreCommitValidator"
        ),
        "hoodie.precommit.validators.single.value.sql.queries": (
            "select count(*) from <TABLE_NAME>#-1"
        ),
    }
    with pytest.raises(Exception, match=r"(?i)validat|upsert|commit"):
        java.write(path, rows, conf={**conf, **failing})
    (crashed,) = flights.pending(path) - before
    flights.silent_for_an_hour(path)
    return crashed
