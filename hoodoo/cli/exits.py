"""
Exit codes: what a script may rely on, in one place.

Sorted by what the caller does next, like the errors they come from.
"""

from __future__ import annotations

from typing import Final

from timeline.errors import HoodooError, LockTimeoutError, Reaction

__all__ = [
    "DONE",
    "ERROR",
    "INTERRUPTED",
    "LOCK_NOT_OBTAINED",
    "OUTCOME_UNKNOWN",
    "PROBLEMS_FOUND",
    "REFUSED",
    "USAGE",
    "exit_code",
]

DONE: Final = 0
ERROR: Final = 1
USAGE: Final = 2
REFUSED: Final = 3
LOCK_NOT_OBTAINED: Final = 4
PROBLEMS_FOUND: Final = 5
OUTCOME_UNKNOWN: Final = 6
INTERRUPTED: Final = 130  # as a shell reports SIGINT


def exit_code(error: HoodooError) -> int:
    """The exit code of an error."""
    if error.reaction is Reaction.REDO:
        return REFUSED
    if error.reaction is Reaction.ASK:
        return OUTCOME_UNKNOWN
    if isinstance(error, LockTimeoutError):
        return LOCK_NOT_OBTAINED
    return ERROR
