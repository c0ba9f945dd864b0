"""
How long after a fault that struck all of a run writes came as fast as usual.

Told in leases: whoever waits for a dead holder waits for one, whatever the machine is like.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.chaos.nemesis import Struck

__all__ = ["Recovered", "recovered"]

ENOUGH = 0.5  # of the usual rate
LEASES_MAX = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """
    What became of the throughput after faults of everybody.

    Args:
        usual: Median number of answers in a window of one lease.
        leases: Of each fault that nothing overlapped, how many leases it took.
        never: Faults after which it did not come back before the run ended.
        overlapped: Faults left out: another one struck everybody before the time was over.
    """

    usual: float
    leases: tuple[float, ...]
    never: int
    overlapped: int

    def as_document(self) -> dict[str, Any]:
        """For the report."""
        return {
            "usual_in_a_lease": self.usual,
            "judged": len(self.leases) + self.never,
            "never": self.never,
            "overlapped": self.overlapped,
            "p50_leases": round(float(np.median(self.leases)), 2) if self.leases else None,
            "longest_leases": round(max(self.leases), 2) if self.leases else None,
        }


def recovered(
    struck: Sequence[Struck], answered: Sequence[float], *, lease_s: float, ends: float
) -> Recovered:
    """
    Judge a run's throughput.

    Args:
        struck: All faults; those with a target strike nobody else and are left out.
        answered: When operations succeeded (monotonic seconds).
        lease_s: Length of a lease, and of the window in which successes are counted.
        ends: When the last fault was healed and the processes were told to end.
    """
    moments = np.sort(np.asarray(answered, float))
    if not len(moments):
        return Recovered(usual=0.0, leases=(), never=0, overlapped=0)
    starts = np.arange(moments[0], max(moments[0] + lease_s, ends - lease_s), lease_s)
    usual = float(np.median(_within(moments, starts, lease_s)))
    everybody = sorted((one for one in struck if not one.fault.target), key=lambda one: one.began)
    leases, never, overlapped = [], 0, 0
    for number, one in enumerate(everybody):
        last = one.healed + LEASES_MAX * lease_s
        others = everybody[:number] + everybody[number + 1 :]
        if last + lease_s > ends or any(
            other.began < last and other.healed > one.healed for other in others
        ):
            overlapped += 1
            continue
        # A window that is full enough begins at the heal, or can be moved on to an answer.
        begins = np.concatenate([[one.healed], moments[moments > one.healed]])
        full = begins[_within(moments, begins, lease_s) >= ENOUGH * usual]
        if len(full):
            leases.append(float(full[0] - one.healed) / lease_s)
        else:
            never += 1
    return Recovered(usual=usual, leases=tuple(leases), never=never, overlapped=overlapped)


def _within(moments: np.ndarray, begins: np.ndarray, seconds: float) -> np.ndarray:
    """How many moments lie in the window after each begin."""
    return np.searchsorted(moments, begins + seconds) - np.searchsorted(moments, begins)
