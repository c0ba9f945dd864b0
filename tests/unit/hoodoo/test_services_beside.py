"""Services on a thread of the writer's process: begun, working, stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from timeline.errors import InvalidInputError

PROPERTIES = {
    "hoodie.table.name": "t",
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.compact.inline.max.delta.commits": "2",
    "hoodie.clean.automatic": "false",
}


class ByHand:
    """The table's executor, whose repetitions run when the test says so."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.rounds: list[tuple[int, Callable[[], None]]] = []
        self.stopped = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def every(self, interval_ms: int, work: Callable[[], None]) -> Any:
        if interval_ms != 5_000:  # the heartbeats of writes
            return self.inner.every(interval_ms, work)
        self.rounds.append((interval_ms, work))
        return self

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def table(tmp_path: Path) -> Any:
    with hoodoo.create_table(tmp_path / "t", properties=PROPERTIES) as made:
        made.upsert(pa.table({"id": ["a"], "ts": [1], "v": [1]}))
        yield made


def test_services_work_beside_the_writer(table: Any) -> None:
    world = table.core.context.world
    by_hand = ByHand(world.executor)
    object.__setattr__(world, "executor", by_hand)
    running = table.services.start("compact", interval_ms=5_000)
    [(_, round_once)] = by_hand.rounds
    round_once()
    assert [one.action for one in table.timeline] == ["deltacommit"]
    table.upsert(pa.table({"id": ["a"], "ts": [2], "v": [2]}))
    round_once()
    assert [one.action for one in table.timeline] == ["deltacommit", "deltacommit", "commit"]
    assert table.to_arrow(columns=["v"]).to_pylist() == [{"v": 2}]
    running.stop()
    assert by_hand.stopped


def test_an_unknown_service_is_refused(table: Any) -> None:
    with pytest.raises(InvalidInputError, match="vacuum"):
        table.services.start("vacuum")
