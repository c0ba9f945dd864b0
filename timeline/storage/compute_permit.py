"""The permit that a storage gives threads which compute for its table (``GivesPermits``)."""

from __future__ import annotations

import os
import threading

__all__ = ["ComputePermit"]


class ComputePermit:
    """One lock for each process: a fork copies locks that nobody there gives back."""

    def __init__(self) -> None:
        self._locks: dict[int, threading.Lock] = {}

    @property
    def here(self) -> threading.Lock:
        """This process's."""
        return self._locks.setdefault(os.getpid(), threading.Lock())
