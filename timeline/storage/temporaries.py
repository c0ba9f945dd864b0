"""
Temporary files on a local disk whose writer was killed before it named or removed them.

No listing shows them (LOC-3), so nobody else would ever find them.
"""

from __future__ import annotations

import os
from dataclasses import replace

from timeline.ports.storage import Stats
from timeline.storage.entries import file_stat_of
from timeline.storage.folders import unavailable
from timeline.storage.leftovers import is_temporary

__all__ = ["temporaries_below"]


def temporaries_below(root: str) -> Stats:
    """
    Every temporary file of ours, named by its path below the root, sorted; links stay unseen.

    Raises:
        StorageUnavailableError: A folder cannot be read.
    """
    found: Stats = []
    for folder, _, names, descriptor in os.fwalk(root, onerror=_refuse):
        for name in filter(is_temporary, names):
            try:
                described = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            except FileNotFoundError:
                continue  # its writer lives
            path = f"{folder}/{name}".removeprefix(f"{root}/")
            found.append(replace(file_stat_of(name, described), name=path))
    return sorted(found, key=lambda one: one.name)


def _refuse(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # a folder removed since
        raise unavailable(error, str(error.filename), "looking for temporary files")
