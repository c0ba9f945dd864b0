"""Java Hudi reads tables of random operations as we do: one table of each kind a night."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.interop.java import JavaOracle
from tests.interop.values import comparable, encoded
from tests.stateful.machine import TableMachine, in_order
from tests.stateful.model import Row
from tests.stateful.tables import features
from timeline.storage.local import LocalStorage

pytestmark = [pytest.mark.jvm, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("appends", [False, True], ids=["copy_on_write", "merge_on_read"])
@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize("by_event", [False, True], ids=["commit_time", "event_time"])
@pytest.mark.parametrize("partitioned", [False, True], ids=["flat", "partitioned"])
def test_java_reads_the_result_of_random_operations(
    java_oracle: Callable[..., JavaOracle],
    tmp_path: Path,
    appends: bool,
    version: int,
    by_event: bool,
    partitioned: bool,
) -> None:
    made: list[tuple[int, Path, list[Row], int]] = []  # writes, folder, rows, the model's

    numbers = itertools.count()

    class OnDisk(TableMachine):
        kinds = features(appends=appends).filter(
            lambda one: (
                (one.version, one.by_event, one.partitioned) == (version, by_event, partitioned)
            )
        )

        def new_storage(self) -> LocalStorage:
            self.folder = tmp_path / str(next(numbers))
            return LocalStorage(str(self.folder), durability="relaxed")

        def teardown(self) -> None:
            if getattr(self, "moments", None):
                shown = self.handles[0].current_state().to_arrow(with_hoodie_columns=True)
                rows = len(self.model.rows())
                made.append((len(self.moments), self.folder, encoded(shown), rows))
            super().teardown()

    run_state_machine_as_test(
        OnDisk,
        settings=settings(
            max_examples=6,
            stateful_step_count=16,
            phases=[Phase.generate],
            derandomize=False,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    _, folder, shown, rows = max(made, key=lambda one: one[0])
    assert in_order(comparable(java_oracle("1.2.0").read(folder))) == in_order(shown)
    assert len(shown) == rows
