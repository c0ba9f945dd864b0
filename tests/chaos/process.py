"""
The start of a chaos process: conditions that must hold before the engine is loaded.

``python -m tests.chaos.process ROLE NAME FOLDER``; the roles are in ``tests.chaos.roles``.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.abc
import os
import signal
import sys
import threading
import time
from typing import Any

_PR_SET_PDEATHSIG = 1
_FILES_KEPT = 64
_BYTES_KEPT = 1 << 20


class _WithoutPandas(importlib.abc.MetaPathFinder):
    """Arrow loads it where it is there, which takes half of a start; the engine does without."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def without_pandas() -> None:
    """Let nothing load it from now on."""
    sys.meta_path.insert(0, _WithoutPandas())


def _sleep_under_libfaketime() -> None:
    """
    Let Python's sleep wait for an event that never happens.

    libfaketime 0.9.10 answers "invalid argument" to a sleep until a moment of the monotonic clock,
    if that clock is not its own. Then Python's sleep fails too.
    """
    never = threading.Event()

    def sleep(seconds: Any) -> None:
        never.wait(float(seconds))

    time.sleep = sleep


def _small_caches() -> None:
    """
    Shrink the engine's caches so that they are full after the first minute; later growth is a leak.

    The engine keeps 512 small files decoded. Of each table in an object store it keeps 16 MiB of data
    files. A writer of a busy machine does not live long enough here to fill that.
    """
    from filegroups.files import parquet as small_files
    from timeline.storage import object_store
    from timeline.storage.data_files import FileCache

    module: Any = small_files
    module._decoded = functools.lru_cache(_FILES_KEPT)(module._decoded.__wrapped__)
    store: Any = object_store
    store.KeptFiles = functools.partial(FileCache, _BYTES_KEPT)


def _end_with_parent() -> None:
    """Be killed when the run's driver is gone, also while stopped (Linux's prctl)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Prepare, and run the role."""
    _end_with_parent()
    without_pandas()
    if "faketime" in os.environ.get("LD_PRELOAD", ""):
        _sleep_under_libfaketime()
    _small_caches()
    from tests.chaos import roles

    roles.main()


if __name__ == "__main__":
    main()
