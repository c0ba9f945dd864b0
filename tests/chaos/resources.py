"""
The resources of a run's processes: open files, threads and memory, sampled from outside.

A process that lives for days must not grow; one that a kill ended after a minute proves nothing
about it. So in a long run one process of each role is never killed, but gets all other faults.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

SAMPLE_EVERY_S = 5.0
WARM_S = 60.0  # imports, the first read of every slot, Arrow's memory pools
CONCLUSIVE_S = 60.0
OLD_S = 600.0
GROWTH_MAX = 0.1
ENDS_AT = 0.9  # share of the later samples that a leak must outlast
#: More than so much besides, as one more of ten open files is a tenth.
ALLOWED: Mapping[str, int] = {"files": 2, "threads": 2, "rss_kb": 16 * 1_024}


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """
    One sample of one process.

    Args:
        at: Seconds of the system's monotonic clock.
        files: Open file descriptors.
        threads: Of the whole process.
        rss_kb: Resident memory.
        kinds: Kinds of the open files with counts: ``socket``, ``pipe`` or the end of a name.
    """

    at: float
    files: int
    threads: int
    rss_kb: int
    kinds: Mapping[str, int] = field(default_factory=dict)


def held_by(pid: int, at: float) -> Held | None:
    """Sample a process; None if it has ended, or if the system has no ``/proc``."""
    place = Path("/proc", str(pid))
    try:
        names = [_opened(one) for one in (place / "fd").iterdir()]
        status = dict(
            line.split(":", 1)
            for line in (place / "status").read_text().splitlines()
            if ":" in line
        )
        return Held(
            at=round(at, 2),
            files=len(names),
            threads=int(status["Threads"]),
            rss_kb=int(status["VmRSS"].split()[0]),
            kinds=dict(Counter(names)),
        )
    except (OSError, KeyError):
        return None


def _opened(descriptor: Path) -> str:
    """Return the kind of an open file: ``socket``, ``anon_inode``, or the suffix of its name."""
    try:
        target = str(descriptor.readlink())
    except OSError:
        return "closed meanwhile"
    if not target.startswith("/"):
        return target.partition(":")[0]
    return Path(target).suffix or Path(target).name


@dataclass(slots=True)
class Watch:
    """All samples of all processes of a crew, by name and process id."""

    seen: dict[tuple[str, int], list[Held]] = field(default_factory=dict)
    _next: float = 0.0

    def sample(self, running: Mapping[str, int]) -> None:
        """Take the samples that are due; ``running`` has process ids by name."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + SAMPLE_EVERY_S
        for name, pid in running.items():
            held = held_by(pid, now)
            if held is not None:
                self.seen.setdefault((name, pid), []).append(held)

    def save(self, path: Path) -> None:
        """Write one JSON object a sample, next to the journals."""
        lines = [
            json.dumps({"name": name, "pid": pid, **asdict(one)})
            for (name, pid), samples in self.seen.items()
            for one in samples
        ]
        path.write_text("".join(f"{line}\n" for line in lines))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """
    The peak of a process in the first half of its life, warmed up, and in the second.

    The number of a pool's threads follows the work of a service, so that single minutes differ by
    half. Memory that is never freed exceeds the first half's peak. A leak stays. So the second half
    counts the value that nine in ten samples did not exceed; otherwise a burst that one sample of a
    hundred caught would be a leak. Pools of threads fill late in a process that had little to do, so
    threads leak above the peak of every process of the run.
    """

    name: str
    seconds: float
    first: Held
    last: Held
    full_pools: int  # the most threads that a process of the run had in its first half

    @property
    def is_old(self) -> bool:
        """Whether it lived long enough to distinguish a leak from a pool that was not yet full."""
        return self.seconds >= OLD_S

    @property
    def shares(self) -> dict[str, float]:
        """By resource, the growth at the end: 0.1 is a tenth."""
        pairs = {
            "files": (self.first.files, self.last.files),
            "threads": (self.first.threads, self.last.threads),
            "rss_kb": (self.first.rss_kb, self.last.rss_kb),
        }
        return {what: round(last / first - 1, 3) for what, (first, last) in pairs.items()}

    @property
    def leaks(self) -> list[str]:
        """Resources that grew by more than a tenth, as text; none of a young process."""
        if not self.is_old:
            return []
        return [
            f"{self.name} held {share:.0%} more {what} in the second half of {self.seconds:.0f} s: "
            f"{getattr(self.first, what)}, then {getattr(self.last, what)}"
            for what, share in self.shares.items()
            if share > GROWTH_MAX and getattr(self.last, what) - self._before(what) > ALLOWED[what]
        ]

    def _before(self, what: str) -> int:
        """What growth begins at."""
        return self.full_pools if what == "threads" else getattr(self.first, what)

    def as_document(self) -> dict[str, Any]:
        """For the report."""
        return {
            "name": self.name,
            "seconds": round(self.seconds),
            "judged": self.is_old,
            **{
                what: [getattr(self.first, what), getattr(self.last, what)]
                for what in ("files", "threads", "rss_kb")
            },
            "growth": self.shares,
        }


def growth(watch: Watch) -> list[Grown]:
    """Every process that lived long enough to have two halves, oldest first."""
    halves = []
    for (name, _), samples in watch.seen.items():
        born, died = samples[0].at + WARM_S, samples[-1].at
        middle = (born + died) / 2
        first = [one for one in samples if born <= one.at < middle]
        last = [one for one in samples if one.at >= middle]
        if died - born < CONCLUSIVE_S or not first:
            continue
        ends = _share_of(last, ENDS_AT)
        halves.append((name, died - born, _share_of(first, 1.0), ends))
    full = max((first.threads for _, _, first, _ in halves), default=0)
    found = [
        Grown(name=name, seconds=seconds, first=first, last=last, full_pools=full)
        for name, seconds, first, last in halves
    ]
    return sorted(found, key=lambda one: (-one.seconds, one.name))


def _share_of(samples: Sequence[Held], share: float) -> Held:
    """The value that this share of the samples did not exceed."""
    found = np.array([[one.files, one.threads, one.rss_kb] for one in samples])
    files, threads, rss_kb = np.quantile(found, share, axis=0, method="higher")
    return Held(at=samples[0].at, files=int(files), threads=int(threads), rss_kb=int(rss_kb))
