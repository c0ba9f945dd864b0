"""
Non-blocking writers with Java Hudi: logs that overlap are read and compacted alike.

The late log of an earlier writer must stay below the logs of later writers, for both engines,
before and after either of them compacts (NBCC-2).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import hoodoo
from filegroups.writing.workload import LocalWorkload
from tests.interop.java import JavaOracle
from tests.interop.mor import (
    BUCKET,
    COMMIT_TIME,
    COMMON,
    EVENT_TIME,
    JAVA,
    SCHEMA,
    arrow,
    by_hudi_rs,
    row,
)
from tests.interop.values import encoded
from tests.servers.zookeeper import ZooKeeperServer
from timeline.model.commit_metadata import WriteOperation

pytestmark = [pytest.mark.jvm, pytest.mark.slow, pytest.mark.timeout(900)]

FREE = {
    "hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL",
    "hoodie.clean.failed.writes.policy": "LAZY",
    **BUCKET,
}
LOCKED = {
    "hoodie.write.lock.provider": (
        "org.apache.hudi.client.transaction.lock.ZookeeperBasedLockProvider"
    ),
    "hoodie.write.lock.zookeeper.base_path": "/hudi/locks",
    "hoodie.write.lock.zookeeper.lock_key": "shared",
}
COMPACTING = {**COMMON, **BUCKET, **JAVA}
COMPACT_AFTER = {"hoodie.compact.inline.max.delta.commits": "4"}
ROUNDS, SHARED = 8, "abc"

Rows = list[dict[str, Any]]


class _Late(LocalWorkload):
    """Others act after this write has begun and before it writes."""

    act: Callable[[], object] = staticmethod(lambda: None)

    def rewrite(self, tasks: Any) -> Any:
        self.act()
        return super().rewrite(tasks)


def upsert_late(table: hoodoo.Table, rows: Rows, act: Callable[[], object]) -> Any:
    workload = _Late(table.context.ports, arrow(rows))
    workload.act = act
    return table._run(WriteOperation.UPSERT, workload)


def plain(rows: Rows) -> list[tuple[str, str]]:
    return sorted((one["id"], one["val"]) for one in rows)


def seen_by(
    path: Path, options: Mapping[str, str], java: JavaOracle
) -> tuple[list[tuple[str, str]], ...]:
    """The rows that we, Java and hudi-rs show."""
    with hoodoo.open_table(path, properties=options) as table:
        ours = plain(encoded(table.to_arrow()))
    return ours, plain(java.read(path)), plain(by_hudi_rs(path))


@pytest.mark.parametrize("order", [EVENT_TIME, COMMIT_TIME], ids=["event", "commit"])
@pytest.mark.parametrize("compactor", ["java", "ours"])
def test_overlapping_logs_mean_the_same_to_both_engines(
    java_oracle: Callable[..., JavaOracle],
    tmp_path: Path,
    order: dict[str, str],
    compactor: str,
) -> None:
    java, path, options = java_oracle("1.2.0"), tmp_path / "t", {**COMMON, **order, **FREE}
    with hoodoo.create_table(path, schema=SCHEMA, properties=options) as table:
        other = hoodoo.open_table(path, properties=options)
        with other:
            # Both open the same buckets, and a greater time is committed first.
            first = upsert_late(
                table,
                [row(key, 10, "slow") for key in "abce"],
                lambda: other.upsert(arrow([row(key, 10, "fast") for key in "acdf"])),
            )
            second = upsert_late(
                table,
                [row("a", 30, "slow ahead"), row("c", 20, "slow again")],
                lambda: other.upsert(arrow([row("a", 25, "fast"), row("c", 20, "fast again")])),
            )
        assert (first.attempts, second.attempts) == (1, 1)
    ahead = "slow ahead" if order is EVENT_TIME else "fast"
    expected = [
        ("a", ahead),
        ("b", "slow"),
        ("c", "fast again"),
        ("d", "fast"),
        ("e", "slow"),
        ("f", "fast"),
    ]
    assert seen_by(path, options, java) == (expected,) * 3
    if compactor == "java":
        java.service(path, "compact", conf=COMPACTING)
    else:
        with hoodoo.open_table(path, properties=options) as table:
            table.services.compact()
    newest = [group["latest_merged"] for group in java.slices(path)]
    assert all(one["base_file"] and not one["log_files"] for one in newest)
    assert seen_by(path, options, java) == (expected,) * 3


def test_a_log_that_completes_after_a_plan_is_on_top_of_it(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path
) -> None:
    """NBCC-3: ours says so from the plan on, Java and hudi-rs once it is carried out."""
    java, path, options = java_oracle("1.2.0"), tmp_path / "t", {**COMMON, **COMMIT_TIME, **FREE}
    with hoodoo.create_table(path, schema=SCHEMA, properties=options) as table:
        with hoodoo.open_table(path, properties=options) as other:
            planned: list[Any] = []

            def others() -> None:
                other.upsert(arrow([row(key, 10, "fast") for key in "ab"]))
                planned.append(other.services.schedule("compact"))

            upsert_late(table, [row("a", 10, "slow")], others)
        expected = [("a", "slow"), ("b", "fast")]
        assert plain(encoded(table.to_arrow())) == expected
    java.service(path, "compact", pending=planned[0].requested_time, conf=COMPACTING)
    assert seen_by(path, options, java) == (expected,) * 3


def test_a_java_writer_and_one_of_ours_append_at_the_same_time(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, lock: Mapping[str, str]
) -> None:
    java, path = java_oracle("1.2.0"), tmp_path / "t"
    options = {**COMMON, **COMMIT_TIME, **FREE, **LOCKED, **lock}
    ours = {**options, "hoodoo.foreign.writers": "expected"}
    appended: dict[str, Rows] = {}
    with hoodoo.create_table(path, schema=SCHEMA, properties=ours) as table:
        appended[table.upsert(arrow([row("z", 10, "seed")])).requested_time] = []
    stopped = threading.Event()

    def java_writes() -> None:
        for number in range(ROUNDS):
            if not stopped.is_set():
                java.write(path, batch("java", number), conf={**options, **JAVA, **COMPACT_AFTER})

    def we_write() -> int:
        refused = 0
        with hoodoo.open_table(path, properties=ours) as table:
            for number in range(ROUNDS):
                rows = batch("ours", number)
                result = upsert_late(table, rows, lambda: stopped.wait(0.3))
                appended[result.requested_time] = rows
                refused += len(result.refusals)
        return refused

    with ThreadPoolExecutor(2) as pool:
        theirs, mine = pool.submit(java_writes), pool.submit(we_write)
        try:
            assert mine.result() == 0
            theirs.result()
        finally:
            stopped.set()
    done = [one for one in java.timeline(path) if one["state"] == "COMPLETED"]
    plans = [one["requested"] for one in done if one["action"] == "commit"]
    logs = [one for one in done if one["action"] == "deltacommit"]
    of_java = sorted(one["requested"] for one in logs if one["requested"] not in appended)
    assert (len(of_java), len(plans) > 1) == (ROUNDS, True), done
    appended |= {time: batch("java", number) for number, time in enumerate(of_java)}
    expected = {"z": "seed"}
    for log in sorted(logs, key=lambda one: (_slice_of(one, plans), one["requested"])):
        expected |= {one["id"]: one["val"] for one in appended[log["requested"]]}
    assert seen_by(path, ours, java) == (sorted(expected.items()),) * 3
    java.service(path, "compact", conf=COMPACTING)
    assert seen_by(path, ours, java) == (sorted(expected.items()),) * 3


def _slice_of(log: Mapping[str, str], plans: list[str]) -> int:
    """NBCC-3: how many plans were there when it completed; Java compacts after its commits."""
    return sum(plan <= log["completion"] for plan in plans)


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[Mapping[str, str]]:
    with ZooKeeperServer(tmp_path / "zookeeper") as server:
        yield {"hoodie.write.lock.zookeeper.url": server.address}


def batch(side: str, number: int) -> Rows:
    """Rows that both write, and one that is this commit's alone."""
    keys = [*SHARED, f"d-{side}-{number}"]
    return [row(key, 10, f"{side} {number}") for key in keys]
