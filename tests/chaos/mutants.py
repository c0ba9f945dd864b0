"""
Broken engines as a control: a chaos run with one of them must end with violations.

``read-then-write``: the storage checks whether a name is free and then writes, instead of creating
it only if absent, and the file system's lock admits everyone. So two writers can take one slot, and
the later one's commit replaces the earlier one's.
"""

from __future__ import annotations

import fcntl
import time
from typing import Any

from timeline.ports.ports import ObjectExistsError
from timeline.storage.local import LocalStorage

_LOOKED_S = 0.02  # between the check and the write, as on a slow disk


def break_engine(mutant: str) -> None:
    """Put the fault into this process."""
    if mutant == "read-then-write":
        storage: Any = LocalStorage
        storage.create = _create
        fcntl.flock = lambda *_: None


def _create(self: LocalStorage, path: str, data: bytes, *, durable: bool = True) -> None:
    if self.stat(path) is not None:
        raise ObjectExistsError(path)
    time.sleep(_LOOKED_S)
    self.write(path, data, durable=durable)
