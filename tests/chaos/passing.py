"""
The pass line of a run: the counts that a profile asks for, the counts found, and the verdict.

A run that broke no promise passes whatever these say. The counts say how much it proved:
``missed`` is a run that was too small to prove much, and ``measured`` a figure without a limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.chaos.faults import ON_THE_WIRE, SMOKE_S_MAX, Kind
from tests.chaos.resources import GROWTH_MAX, Grown
from tests.chaos.throughput import LEASES_MAX, Recovered

_NIGHTLY_S = 1_200
_NIGHTLY_COMMITS, _NIGHTLY_FAULTS = 5_000, 200
_SMOKE_S = 90
_SMOKE_COMMITS, _SMOKE_FAULTS = 400, 15
_SMOKE_KINDS: Mapping[str, tuple[int, tuple[Kind, ...]]] = {
    "kills": (6, (Kind.KILL,)),
    "pauses beyond the lease": (4, (Kind.PAUSE,)),
    "faults on the wire": (3, ON_THE_WIRE),
    "clock jumps": (2, (Kind.CLOCK,)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line: ``met``, ``missed`` or ``measured``."""

    what: str
    wanted: str
    found: str
    verdict: str


def pass_line(
    *,
    seconds: float,
    commits: int,
    faults: Mapping[str, int],
    violations: Sequence[str],
    lock_free_ms: int,
    recovery: Recovered,
    grown: Sequence[Grown],
) -> list[Line]:
    """
    The lines of the profile a run belongs to by its length, counts scaled to it.

    Args:
        seconds: How long faults struck.
        commits: Operations that were acknowledged.
        faults: How many of each kind.
        violations: Promises that were broken.
        lock_free_ms: How long a write took when all was over.
        recovery: Of the throughput.
        grown: The processes that lived long.
    """
    smoke = seconds <= SMOKE_S_MAX
    lines = [_least("violations", 0, len(violations), most=True)]
    lines.append(_least("acknowledged commits", commits_wanted(seconds), commits))
    struck = sum(faults.values())
    wanted_faults = _SMOKE_FAULTS if smoke else round(_NIGHTLY_FAULTS * _share(seconds))
    lines.append(_least("faults", wanted_faults, struck))
    if smoke:
        lines += [
            _least(what, least, sum(faults.get(kind.value, 0) for kind in kinds))
            for what, (least, kinds) in _SMOKE_KINDS.items()
        ]
    hung = sum("did not end within" in one for one in violations)
    lines.append(
        Line(
            what="hung locks and processes",
            wanted="0",
            found=f"{hung}; the lock was free after {lock_free_ms} ms",
            verdict="missed" if hung else "met",
        )
    )
    return [*lines, _recovery_line(recovery), _growth_line(grown)]


def commits_wanted(seconds: float) -> int:
    """How many operations a run of this length should have acknowledged."""
    most = _SMOKE_COMMITS if seconds <= SMOKE_S_MAX else _NIGHTLY_COMMITS
    return round(most * _share(seconds))


def _share(seconds: float) -> float:
    """Of its profile; a run that lasts longer is asked for no more."""
    return min(1.0, seconds / (_SMOKE_S if seconds <= SMOKE_S_MAX else _NIGHTLY_S))


def _least(what: str, wanted: int, found: int, *, most: bool = False) -> Line:
    met = found <= wanted if most else found >= wanted
    return Line(
        what=what,
        wanted=f"{wanted}" if most else f">= {wanted}",
        found=str(found),
        verdict="met" if met else "missed",
    )


def _recovery_line(recovery: Recovered) -> Line:
    found: dict[str, Any] = recovery.as_document()
    if not found["judged"]:
        verdict = "measured"
    else:
        in_time = not recovery.never and max(recovery.leases) <= LEASES_MAX
        verdict = "met" if in_time else "missed"
    return Line(
        what="throughput after a heal",
        wanted=f"<= {LEASES_MAX:g} leases",
        found=(
            f"p50 {found['p50_leases']}, longest {found['longest_leases']} leases in "
            f"{found['judged']} quiet times, not in {recovery.never}; of {found['disturbed']} faults "
            f"with others behind them longest {found['disturbed_longest_leases']}"
        ),
        verdict=verdict,
    )


def _growth_line(grown: Sequence[Grown]) -> Line:
    old = [one for one in grown if one.is_old]
    most = {
        what: max((one.shares[what] for one in old), default=0.0)
        for what in ("files", "threads", "rss_kb")
    }
    leaks = [one for each in old for one in each.leaks]
    verdict = "measured" if not old else "missed" if leaks else "met"
    return Line(
        what="growth of files, threads and memory",
        wanted=f"<= {GROWTH_MAX:.0%}",
        found=", ".join(f"{what} {share:+.0%}" for what, share in most.items())
        + f" at most, of {len(old)} old processes",
        verdict=verdict,
    )
