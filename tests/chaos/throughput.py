"""
How long after the last fault of a storm writes were as fast as usual.

The unit is a lease: every writer that waits for a dead holder waits for one, on any machine. The
verdict uses the quiet times (reliability figures: "a quiet window to measure recovery"): all is
healed, and no fault happens for two leases. In other times the next holder may be killed before
the last one's lease has ended. That measures only how dense the faults are; the report shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.chaos.nemesis import Struck

ENOUGH = 0.5  # of the usual rate
LEASES_MAX = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """
    Recovery of the throughput after faults.

    Args:
        usual: Median number of answers in a window of one lease.
        leases: For each quiet time, the number of leases it took from the heal before it.
        never: Quiet times in which, and after which, it did not recover.
        disturbed: The same for faults that hit all processes and had no quiet time after them,
            without those after which it never recovered.
    """

    usual: float
    leases: tuple[float, ...]
    never: int
    disturbed: tuple[float, ...] = ()

    def as_document(self) -> dict[str, Any]:
        """For the report."""
        return {
            "usual_in_a_lease": self.usual,
            "judged": len(self.leases) + self.never,
            "never": self.never,
            "p50_leases": round(float(np.median(self.leases)), 2) if self.leases else None,
            "longest_leases": round(max(self.leases), 2) if self.leases else None,
            "disturbed": len(self.disturbed),
            "disturbed_longest_leases": round(max(self.disturbed), 2) if self.disturbed else None,
        }


def recovered(
    struck: Sequence[Struck], answered: Sequence[float], *, lease_s: float, ends: float
) -> Recovered:
    """
    Measure a run's throughput.

    Args:
        struck: All faults, of all victims.
        answered: When operations succeeded (monotonic seconds).
        lease_s: Length of a lease, and of the window in which successes are counted.
        ends: When the last fault was healed and the processes were asked to end.
    """
    moments = np.sort(np.asarray(answered, float))
    if not len(moments):
        return Recovered(usual=0.0, leases=(), never=0)
    starts = np.arange(moments[0], max(moments[0] + lease_s, ends - lease_s), lease_s)
    usual = float(np.median(_within(moments, starts, lease_s)))
    leases, never, disturbed = [], 0, []
    for one in struck:
        quiet_until = one.healed + LEASES_MAX * lease_s
        if quiet_until + lease_s > ends:
            continue
        is_quiet = not any(
            other.began < quiet_until and other.healed > one.healed
            for other in struck
            if other is not one
        )
        if not is_quiet and one.fault.target:
            continue
        # A window that is full enough begins at the heal, or can be moved on to an answer.
        begins = np.concatenate([[one.healed], moments[moments > one.healed]])
        full = begins[_within(moments, begins, lease_s) >= ENOUGH * usual]
        took = float(full[0] - one.healed) / lease_s if len(full) else None
        if is_quiet and took is None:
            never += 1
        elif took is not None:
            (leases if is_quiet else disturbed).append(took)
    return Recovered(usual=usual, leases=tuple(leases), never=never, disturbed=tuple(disturbed))


def _within(moments: np.ndarray, begins: np.ndarray, seconds: float) -> np.ndarray:
    """Number of moments in the window after each begin."""
    return np.searchsorted(moments, begins + seconds) - np.searchsorted(moments, begins)
