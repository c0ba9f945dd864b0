"""A DataFrame's lease: taken while it is read, seen by cleaning, over after the last job."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import hoodoo
from hoodoo.spark.leases import pin_while_read
from hoodoo.spark.read import plan_load
from tableservices.cleaning.execute import clean
from tableservices.cleaning.plan import CleaningSettings
from timeline.reader_lease import registered_readers

pytestmark = pytest.mark.spark


class ByHand:
    """An executor whose background work a test runs."""

    def __init__(self) -> None:
        self.works: list[Any] = []

    def every(self, _: int, work: Any) -> Any:
        self.works.append(work)
        return self

    def stop(self) -> None:
        self.works.clear()


class Unread:
    """A stand-in for a DataFrame."""


@pytest.mark.slow
def test_a_dataframe_is_read_although_its_files_were_cleaned_meanwhile(
    spark: Any, path: str, save: Any
) -> None:
    for at in range(3):
        save([(1, "mon", at, 1.0)])
    df = spark.read.format("hoodoo").load(path)
    with hoodoo.open_table(path) as table:
        lease = plan_load(table, table.properties).lease
        assert lease.acquire()
        for at in range(3, 6):
            save([(1, "mon", at, 1.0)])
        clean(table.context, CleaningSettings(commits_retained=1))
        assert df.collect()[0]["at"] == 2
        lease.end()


def test_a_lease_is_not_renewed_after_the_last_job_that_can_read(
    spark: Any, path: str, save: Any, jobs: Callable[[], Any]
) -> None:
    save([(1, "mon", 1, 1.0)])
    with hoodoo.open_table(path) as table:
        context = table.context
        by_hand = ByHand()
        elsewhere = replace(context, ports=replace(context.ports, executor=by_hand))
        df = Unread()
        pin_while_read(spark, elsewhere, plan_load(table, table.properties).lease, df)
        [beat] = by_hand.works
        beat()
        assert [one.alive for one in registered_readers(context)] == [True]
        del df
        gc.collect()
        assert jobs().getActiveJobsIds() == []
        beat()
        assert by_hand.works == []
