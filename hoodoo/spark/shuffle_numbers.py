"""
Numbers for file groups that Spark's shuffle distributes evenly.

Spark sends a row to a task by the hash of a column. So several file groups may end up in one task
while other cores are idle. The numbers here have hashes that give each task an equal share. With
another hash in Spark, only the balance would be worse.
"""

from __future__ import annotations

from collections import deque
from itertools import count

_MASK = 0xFFFFFFFF
_SEED = 42


def shuffle_numbers(targets: int, partitions: int) -> list[int]:
    """
    Choose numbers for ``targets`` file groups, evenly over ``partitions`` shuffle partitions.

    Returns:
        One distinct number for each file group; Spark sends the i-th to partition i % partitions.
    """
    wanted: list[deque[int]] = [deque() for _ in range(partitions)]
    shares = [len(range(place, targets, partitions)) for place in range(partitions)]
    missing = sum(shares)
    for number in count():
        if missing == 0:
            break
        place = _spark_hash(number) % partitions
        if len(wanted[place]) < shares[place]:
            wanted[place].append(number)
            missing -= 1
    return [wanted[target % partitions].popleft() for target in range(targets)]


def _spark_hash(number: int) -> int:
    """Return Murmur3 of a 32-bit integer as a signed number, Spark's hash for partitions."""
    mixed = (number * 0xCC9E2D51) & _MASK
    mixed = (mixed << 15 | mixed >> 17) & _MASK
    mixed = (mixed * 0x1B873593) & _MASK
    state = _SEED ^ mixed
    state = (state << 13 | state >> 19) & _MASK
    state = (state * 5 + 0xE6546B64) & _MASK
    state ^= 4  # bytes hashed
    state ^= state >> 16
    state = (state * 0x85EBCA6B) & _MASK
    state ^= state >> 13
    state = (state * 0xC2B2AE35) & _MASK
    state ^= state >> 16
    return state - (1 << 32) if state >> 31 else state
