"""Running services: after a commit without harm to it, and by a worker that continues."""

from __future__ import annotations

from typing import Any

from hoodoo.services import run_inline
from tableservices.cleaning.execute import CleaningService
from tableservices.cleaning.plan import CleaningSettings
from tableservices.worker import FailingService as Failed
from tableservices.worker import StopFlag, WorkerListener, WorkerReport, WorkerTable, run_worker
from tests.unit.timeline.recording import RecordingStorage


class Watching(WorkerListener):
    """Records the events of a worker."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.reports: list[WorkerReport] = []

    def on_start(self, served: WorkerTable, service: Any) -> None:
        self.events.append(f"{service.name} began")

    def on_done(self, served: WorkerTable, service: Any, result: Any) -> None:
        self.events.append(f"{service.name}: {result.text}")

    def on_failure(self, failing: Failed) -> None:
        self.events.append(failing.text)

    def on_idle(self, report: WorkerReport) -> None:
        self.reports.append(report)


class Failing:
    name = "failing"
    runs_inline = True
    runs_in_background = False

    def __init__(self, good_rounds: tuple[int, ...] = ()) -> None:
        self.rounds = 0
        self.good_rounds = good_rounds

    def run_once(self, context: Any) -> None:
        self.rounds += 1
        if self.rounds not in self.good_rounds:
            raise RuntimeError("broken")


def test_inline_cleaning_follows_a_commit(bench: Any) -> None:
    times = bench.commits(5)
    service = CleaningService(settings=CleaningSettings(commits_retained=2))
    assert run_inline(bench.context, [service]) == ()
    assert bench.times_left() == times[2:]


def test_inline_cleaning_does_not_run_while_no_slice_can_have_become_old(bench: Any) -> None:
    storage = RecordingStorage(bench.storage)
    watched = bench.open(storage)
    service = CleaningService(settings=CleaningSettings(commits_retained=2))

    def lists_after(*file_ids: str) -> int:
        bench.commit(*file_ids)
        storage.forget()
        assert run_inline(watched, [service]) == ()
        return storage.count("names", "list")

    for number in range(4):
        lists_after(f"f{number}")
    assert lists_after("f4") == 0, "only new file groups since the last refresh"
    bench.clock.time_ms += watched.limits.heartbeat.interval_ms
    assert lists_after("f5") > 0, "a writer may have died meanwhile"
    assert lists_after("f6") == 0
    assert lists_after("f6") > 0, "a file was superseded"


def test_asynchronous_cleaning_is_left_to_the_worker(bench: Any) -> None:
    times = bench.commits(5)
    settings = CleaningSettings(commits_retained=2, asynchronous=True)
    assert run_inline(bench.context, [CleaningService(settings=settings)]) == ()
    assert bench.times_left() == times


def test_a_failing_service_never_fails_the_write(bench: Any) -> None:
    failures = run_inline(bench.context, [Failing()])
    assert failures == ("the write is committed, but failing after it failed: broken",)
    assert "service.failed" in bench.events.names()


def test_the_worker_continues_after_failures_and_waits_longer(bench: Any) -> None:
    times = bench.commits(5)
    service = CleaningService(settings=CleaningSettings(commits_retained=2))
    failing = Failing(good_rounds=(3,))
    watching = Watching()
    report = run_worker(
        [WorkerTable(context=bench.context, services=[failing, service])],
        interval_ms=100,
        rounds_max=4,
        watcher=watching,
    )
    table = bench.storage.base_uri
    assert (report.rounds, report.receipts, report.failures) == (4, 1, 3)
    assert watching.events[:4] == [
        "failing began",
        f"failing of {table} failed: broken",
        "clean began",
        f"clean: cleaned 2 files, everything since {times[3]} is kept",
    ]
    failing_then = [[one.service for one in now.failing] for now in watching.reports]
    assert failing_then == [["failing"], ["failing"], [], ["failing"]]
    assert bench.clock.sleeps == [200, 200, 200, 100]


def test_the_worker_stops_on_request(bench: Any) -> None:
    stop = StopFlag()

    class Asking:
        name = "asking"
        inline = False
        beside = False

        def run_once(self, context: Any) -> None:
            stop.set()

    served = WorkerTable(context=bench.context, services=[Asking(), Failing()])
    report = run_worker([served], interval_ms=10_000, stop=stop)
    assert (report.rounds, report.failures) == (1, 0)
    assert bench.clock.sleeps == []


def test_a_broken_table_does_not_slow_the_others(bench: Any) -> None:
    rounds: list[str] = []

    class Noting:
        inline = False
        beside = False

        def __init__(self, name: str, *, broken: bool) -> None:
            self.name = name
            self.broken = broken

        def run_once(self, context: Any) -> None:
            rounds.append(self.name)
            if self.broken:
                raise RuntimeError("broken")

    tables = [
        WorkerTable(context=bench.context, services=[Noting("broken", broken=True)]),
        WorkerTable(context=bench.context, services=[Noting("good", broken=False)]),
    ]
    watching = Watching()
    report = run_worker(tables, interval_ms=1_000, rounds_max=3, watcher=watching)
    assert rounds == ["broken", "good", "good", "broken", "good", "broken"]
    assert (report.rounds, report.failures) == (6, 3)
    assert [now.failures for now in watching.reports] == [1, 1, 1, 2, 2, 3]
