"""A bounded cache: what was not used for longest leaves first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class RecentlyUsed(Generic[Key, Value]):
    """
    Values by their keys, for all threads of a process.

    Args:
        bytes_max: The most bytes of all values together.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._kept: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._guard = threading.Lock()

    def keep(self, key: Key, value: Value, nbytes: int) -> None:
        """Keep a value of ``nbytes`` in place of the key's last one, unless it is too large."""
        with self._guard:
            self._forget(key)
            if nbytes > self._bytes_max:
                return
            self._kept[key] = value, nbytes
            self._bytes += nbytes
            while self._bytes > self._bytes_max:
                self._forget(next(iter(self._kept)))

    def find(self, key: Key) -> Value | None:
        """Return the value of a key; None if it is not kept."""
        with self._guard:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def _forget(self, key: Key) -> None:
        _, nbytes = self._kept.pop(key, (None, 0))
        self._bytes -= nbytes
