"""The figures of a chaos run: recovery, growth and counts; each defect is noticed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.chaos.faults import Fault, Kind
from tests.chaos.nemesis import Struck
from tests.chaos.passing import pass_line
from tests.chaos.resources import Grown, Held, Watch, growth, held_by
from tests.chaos.throughput import Recovered, recovered

EVEN = Recovered(usual=4.0, leases=(0.0, 1.5), never=0)


def struck(kind: Kind, began: float, healed: float, target: str = "") -> Struck:
    fault = Fault(kind=kind, starts_s=began, lasts_s=healed - began, target=target)
    return Struck(fault=fault, began=began, healed=healed)


def answers(*spans: tuple[float, float]) -> list[float]:
    """One each second from the first to the last moment of a span."""
    return [first + number for first, last in spans for number in range(int(last - first) + 1)]


def verdicts(
    *,
    seconds: float = 1_200,
    commits: int = 5_000,
    faults: int = 200,
    violations: tuple[str, ...] = (),
    recovery: Recovered = EVEN,
    grown: tuple[Grown, ...] = (),
) -> dict[str, str]:
    lines = pass_line(
        seconds=seconds,
        commits=commits,
        faults={"kill": faults},
        violations=violations,
        lock_free_ms=10,
        recovery=recovery,
        grown=grown,
    )
    return {one.what: one.verdict for one in lines}


def samples(ages: range, *, files: int = 10, threads: int = 5, rss_kb: int = 100_000) -> list[Held]:
    return [Held(at=float(age), files=files, threads=threads, rss_kb=rss_kb) for age in ages]


# ---------------------------------------------------------------- throughput


def test_throughput_that_is_back_within_a_lease_has_recovered() -> None:
    found = recovered([struck(Kind.REFUSE, 20, 24)], answers((0, 20), (26, 60)), lease_s=4, ends=60)
    assert found == Recovered(usual=4.0, leases=(0.0,), never=0)


def test_recovery_is_the_time_until_half_the_usual_rate_is_reached() -> None:
    found = recovered([struck(Kind.SERVER, 20, 24)], answers((0, 20), (36, 80)), lease_s=4, ends=80)
    assert found.leases == (3.0,)


def test_throughput_that_never_recovers_is_reported() -> None:
    found = recovered([struck(Kind.DISK, 40, 44)], answers((0, 40)), lease_s=4, ends=64)
    assert (found.leases, found.never) == ((), 1)


def test_a_kill_before_a_quiet_time_is_evaluated() -> None:
    killed = [struck(Kind.KILL, 20, 21, "write-0")]
    found = recovered(killed, answers((0, 20), (29, 60)), lease_s=4, ends=60)
    assert found.leases == (2.0,)


def test_faults_before_other_faults_are_reported_and_not_evaluated() -> None:
    faults = [
        struck(Kind.DELAY, 20, 24),
        struck(Kind.KILL, 31, 32, "write-0"),
        struck(Kind.CUT, 58, 58),  # too late to see its effect
    ]
    found = recovered(faults, answers((0, 20), (37, 60)), lease_s=4, ends=60)
    assert (found.leases, found.never, found.disturbed) == ((1.25,), 0, (3.25,))


def test_a_fault_that_is_over_before_the_last_one_begins_no_quiet_time() -> None:
    faults = [struck(Kind.PAUSE, 20, 28, "write-0"), struck(Kind.CLOCK, 22, 24, "write-1")]
    found = recovered(faults, answers((0, 20), (28, 60)), lease_s=4, ends=60)
    assert (found.leases, found.disturbed) == ((0.0,), ())


def test_a_run_without_one_answer_has_no_throughput() -> None:
    assert recovered([struck(Kind.CUT, 1, 2)], [], lease_s=4, ends=9).usual == 0.0


# ---------------------------------------------------------------- growth


def held_by_one_that_waits(*files: int) -> Held | None:
    """
    A separate process, because the process of the tests opens and closes other files meanwhile.
    """
    code = "print('there', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code],
        pass_fds=files,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        held = held_by(process.pid, 1.0)
        process.communicate("\n", timeout=60)
    return held


def test_files_threads_and_memory_of_a_process_are_measured() -> None:
    if not Path("/proc/self/fd").exists():
        pytest.skip("the system has no /proc")
    before = held_by_one_that_waits()
    with Path(__file__).open() as file:
        after = held_by_one_that_waits(file.fileno())
    assert before is not None
    assert after is not None
    assert after.files == before.files + 1
    assert dict(after.kinds) == {**before.kinds, ".py": 1}
    assert sum(after.kinds.values()) == after.files
    assert after.threads == 1
    assert after.rss_kb > 1_000


def test_an_ended_process_has_no_measurements() -> None:
    assert held_by(2**22 + 1, 1.0) is None


@pytest.mark.parametrize(
    ("what", "more"),
    [("files", {"files": 14}), ("threads", {"threads": 8}), ("rss_kb", {"rss_kb": 120_000})],
)
def test_an_old_process_that_uses_a_tenth_more_in_its_second_half_leaks(
    what: str, more: dict[str, int]
) -> None:
    seen = [*samples(range(0, 600, 5)), *samples(range(600, 665, 5), **more)]
    [found] = growth(Watch({("write-0", 7): seen}))
    assert found.is_old
    [leak] = found.leaks
    assert leak.startswith("write-0 held ")
    assert f"more {what} in the second half of 600 s" in leak
    assert verdicts(grown=(found,))["growth of files, threads and memory"] == "missed"


def test_a_process_that_uses_at_most_as_much_as_before_does_not_leak() -> None:
    busy, idle = samples(range(300, 305), threads=9), samples(range(0, 300, 5), threads=2)
    again = samples(range(305, 665, 5), threads=9, files=12)  # two more files than ten are nothing
    [found] = growth(Watch({("read-0", 7): [*idle, *busy, *again]}))
    assert found.is_old
    assert found.leaks == []
    assert verdicts(grown=(found,))["growth of files, threads and memory"] == "met"


@pytest.mark.parametrize(("threads", "leaks"), [(102, 0), (103, 1)])
def test_a_pool_that_fills_late_is_no_growth(threads: int, leaks: int) -> None:
    busy = samples(range(0, 1_200, 5), threads=100)
    late = [*samples(range(0, 640, 5)), *samples(range(640, 1_200, 5), threads=threads)]
    found = growth(Watch({("write-0", 7): busy, ("write-1", 8): late}))
    assert [len(one.leaks) for one in found] == [0, leaks]


@pytest.mark.parametrize(("often", "leaks"), [(6, 0), (7, 1)])
def test_a_short_burst_is_no_growth(often: int, leaks: int) -> None:
    burst = samples(range(600, 600 + 5 * often, 5), files=40)
    rest = samples(range(600 + 5 * often, 665, 5))
    [found] = growth(Watch({("read-0", 7): [*samples(range(0, 600, 5)), *burst, *rest]}))
    assert len(found.leaks) == leaks


def test_use_in_the_first_minute_of_a_process_is_no_growth() -> None:
    warm = samples(range(60, 665, 5), rss_kb=400_000)
    [found] = growth(Watch({("serve-0", 7): [*samples(range(0, 60, 5)), *warm]}))
    assert found.shares == {"files": 0.0, "threads": 0.0, "rss_kb": 0.0}


def test_a_young_process_is_reported_and_not_evaluated() -> None:
    watch = Watch(
        {
            ("write-1", 8): [
                *samples(range(0, 200, 5)),
                *samples(range(200, 280, 5), rss_kb=900_000),
            ],
            ("write-2", 9): samples(range(0, 100, 5)),
        }
    )
    [found] = growth(watch)
    assert (found.name, found.is_old, found.leaks) == ("write-1", False, [])
    assert found.shares["rss_kb"] == 8.0
    assert verdicts(grown=(found,))["growth of files, threads and memory"] == "measured"


def test_a_watch_measures_every_few_seconds_and_keeps_its_measurements(tmp_path: Path) -> None:
    watch = Watch()
    for _ in range(3):
        watch.sample({"write-0": os.getpid(), "gone-0": 2**22 + 1})
    watch.save(tmp_path / "seen.jsonl")
    [line] = (tmp_path / "seen.jsonl").read_text().splitlines()
    assert json.loads(line)["name"] == "write-0"
    assert json.loads(line)["at"] <= round(time.monotonic(), 2) + 0.01


# ---------------------------------------------------------------- the lines


def test_a_run_with_the_nightly_profile_passes_every_line_that_can_be_evaluated() -> None:
    assert verdicts() == {
        "violations": "met",
        "acknowledged commits": "met",
        "faults": "met",
        "hung locks and processes": "met",
        "throughput after a heal": "met",
        "growth of files, threads and memory": "measured",
    }


def test_each_line_below_its_target_is_missed() -> None:
    assert verdicts(violations=("t: lost",))["violations"] == "missed"
    assert verdicts(commits=4_999)["acknowledged commits"] == "missed"
    assert verdicts(faults=199)["faults"] == "missed"
    hung = "write-1 did not end within 240 s"
    assert verdicts(violations=(hung,))["hung locks and processes"] == "missed"
    late = Recovered(usual=4.0, leases=(2.1,), never=0)
    never = Recovered(usual=4.0, leases=(0.5,), never=1)
    nothing = Recovered(usual=4.0, leases=(), never=0, disturbed=(0.5, 3.0))
    line = "throughput after a heal"
    assert verdicts(recovery=late)[line] == verdicts(recovery=never)[line] == "missed"
    assert verdicts(recovery=nothing)[line] == "measured"


def test_counts_are_required_by_the_length_of_the_run() -> None:
    assert verdicts(seconds=600, commits=2_500, faults=100)["acknowledged commits"] == "met"
    assert verdicts(seconds=600, commits=2_499, faults=99)["faults"] == "missed"


def test_a_smoke_run_is_evaluated_by_its_own_profile() -> None:
    found = verdicts(seconds=90, commits=400, faults=18)
    assert found["acknowledged commits"] == found["faults"] == found["kills"] == "met"
    assert found["pauses beyond the lease"] == "missed"
    assert found["faults on the wire"] == found["clock jumps"] == "missed"
