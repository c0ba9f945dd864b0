"""
The faults of a chaos run: a seed decides the kind, the time and the victim of each.

The seed does not decide their effect: real processes get a fault at any point of their work. The
seed repeats the weather, not the accident.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

_CALM_EVERY_S, _CALM_S_MIN = 120, 20
_CALM_HOLDS = 4  # the longest pause is not over yet when it begins, and recovery may take two
_FIRST_S = 2.0


class Kind(Enum):
    """A kind of fault."""

    KILL = "kill"  # SIGKILL, and another process in its place
    PAUSE = "pause"  # SIGSTOP for longer than its lease and heartbeat last
    CLOCK = "clock"  # its wall clock jumps by an hour, and back
    DISK = "disk"  # the disk of the tables is full
    CUT = "cut"  # connections to the lock's server are reset
    REFUSE = "refuse"  # and new ones, too
    STALL = "stall"  # they stay open, and nothing passes
    DELAY = "delay"  # answers are late
    DROP = "drop"  # requests arrive, answers are lost
    DROP_ONE = "drop_one"  # one answer is lost
    SERVER = "server"  # kill -9 of the lock's server, which starts again


ON_THE_WIRE = (Kind.CUT, Kind.REFUSE, Kind.STALL, Kind.DELAY, Kind.DROP, Kind.DROP_ONE)
#: Of a smoke run, and of 20 minutes.
_SMOKE: Mapping[Kind, int] = {
    Kind.KILL: 6,
    Kind.PAUSE: 4,
    Kind.CLOCK: 2,
    Kind.DISK: 1,
    Kind.CUT: 1,
    Kind.DELAY: 1,
    Kind.DROP: 1,
    Kind.DROP_ONE: 1,
    Kind.SERVER: 1,
}
_IN_20_MINUTES: Mapping[Kind, int] = {
    Kind.KILL: 70,
    Kind.PAUSE: 45,
    Kind.CLOCK: 30,
    Kind.DISK: 20,
    Kind.CUT: 10,
    Kind.REFUSE: 8,
    Kind.STALL: 8,
    Kind.DELAY: 8,
    Kind.DROP: 10,
    Kind.DROP_ONE: 10,
    Kind.SERVER: 8,
}
SMOKE_S_MAX = 180


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault: begins so many seconds after the start and lasts so long."""

    kind: Kind
    starts_s: float
    lasts_s: float
    target: str = ""  # a process; empty where it strikes all
    amount: float = 0.0  # seconds of a clock's jump, of an answer's delay


def counts_for(seconds: float, possible: Sequence[Kind]) -> dict[Kind, int]:
    """
    Return the number of faults of each kind in a run of this length, if they are possible.

    A long run has the same total if a kind is impossible: a lock without a server has no wire.
    """
    if seconds <= SMOKE_S_MAX:
        return {kind: count for kind, count in _SMOKE.items() if kind in possible}
    there = sum(count for kind, count in _IN_20_MINUTES.items() if kind in possible)
    share = seconds / 1_200 * sum(_IN_20_MINUTES.values()) / max(there, 1)
    return {
        kind: max(1, round(count * share))
        for kind, count in _IN_20_MINUTES.items()
        if kind in possible
    }


def schedule(
    seed: int,
    seconds: float,
    counts: Mapping[Kind, int],
    *,
    hold_s: float,
    crew: Sequence[str],
    spared: Sequence[str] = (),
) -> list[Fault]:
    """
    Return all faults of a run in their order.

    Args:
        seed: Equal seeds, equal faults.
        seconds: Length of the run; nothing begins in its last sixth.
        counts: Of each kind.
        hold_s: Silence in seconds after which a process counts as dead. Pauses last longer, and each
            two minutes end with a calm in which recovery is measured.
        crew: Names of the processes; writers are hit twice as often as others.
        spared: Names of processes that are never killed.
    """
    chance = random.Random(seed)
    kinds = [kind for kind, count in counts.items() for _ in range(count)]
    chance.shuffle(kinds)
    targets = [*crew, *(name for name in crew if name.startswith("write"))]
    stormy = [
        float(second)
        for second in range(int(_FIRST_S), max(3, int(seconds * 5 / 6)))
        if second % _CALM_EVERY_S < _CALM_EVERY_S - max(_CALM_S_MIN, _CALM_HOLDS * hold_s)
    ]
    found = []
    for number, kind in enumerate(kinds):
        at = (number + chance.random()) / len(kinds) * len(stormy)
        starts = stormy[min(int(at), len(stormy) - 1)] + at % 1
        may_die = [name for name in targets if name not in spared]
        found.append(
            _drawn(chance, kind, starts, hold_s, may_die if kind is Kind.KILL else targets)
        )
    return found


def _drawn(
    chance: random.Random, kind: Kind, starts_s: float, hold_s: float, targets: Sequence[str]
) -> Fault:
    target, amount = "", 0.0
    if kind is Kind.KILL:
        target, lasts = chance.choice(targets), chance.uniform(0.1, 1.5)
    elif kind is Kind.PAUSE:
        target, lasts = chance.choice(targets), hold_s * chance.uniform(1.1, 1.8)
    elif kind is Kind.CLOCK:
        target, lasts = chance.choice(targets), chance.uniform(2, 6)
        amount = chance.choice([-3_600, 3_600])
    elif kind is Kind.DISK:
        lasts = chance.uniform(1.5, 3)
    elif kind in (Kind.CUT, Kind.DROP_ONE, Kind.SERVER):
        lasts = 0.0
    else:
        lasts = hold_s * chance.uniform(0.4, 1.2)
        amount = chance.uniform(0.2, 0.8)
    return Fault(
        kind=kind,
        starts_s=round(starts_s, 2),
        lasts_s=round(lasts, 2),
        target=target,
        amount=amount,
    )
