"""
Names of a folder's files, listed again and again at the price of what changed.

A timeline has thousands of names and every commit looks at it several times, while only a
few names come and go in between. What a name is (a plain file, to be shown) is worked out
once; afterwards it only has to be there.
"""

from __future__ import annotations

import os
import stat
from collections import OrderedDict
from collections.abc import Iterable

from timeline.storage.folders import OpenFolder, symlink_refused
from timeline.storage.leftovers import is_leftover

__all__ = ["NameLists"]

_FOLDERS_MAX = 16
_LOOKED_UP_ONE_BY_ONE_MAX = 64


class NameLists:
    """The last name lists of a few folders. Threads may share it: each entry is one value."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, tuple[frozenset[str], tuple[str, ...]]] = OrderedDict()

    def read(self, folder: str, opened: OpenFolder) -> list[str]:
        """
        Names of the plain files in a folder, sorted; leftovers are hidden (LOC-3).

        Raises:
            MalformedNameError: A symbolic link is among the new names.
            OSError: The folder cannot be listed.
        """
        descriptor = opened.again()
        try:
            known, names = self._last.get(folder, (frozenset(), ()))
            present = set(os.listdir(descriptor)) if known else set()  # noqa: PTH208 - by descriptor
            fresh = present - known
            if not known or len(fresh) > _LOOKED_UP_ONE_BY_ONE_MAX:
                found = _scanned(folder, descriptor)
            else:
                gone = known - present
                added = _plain(folder, fresh, descriptor)
                if not gone and not added:
                    return list(names)
                found = [name for name in names if name not in gone] if gone else list(names)
                found.extend(added)
        finally:
            os.close(descriptor)
        found.sort()
        self._last[folder] = (frozenset(found), tuple(found))
        while len(self._last) > _FOLDERS_MAX:
            self._last.popitem(last=False)
        return found


def _plain(folder: str, names: Iterable[str], descriptor: int) -> list[str]:
    found = []
    for name in names:
        if is_leftover(name):
            continue
        try:
            mode = os.lstat(name, dir_fd=descriptor).st_mode
        except FileNotFoundError:
            continue  # removed since
        if stat.S_ISREG(mode):
            found.append(name)
        elif stat.S_ISLNK(mode):
            raise symlink_refused(f"{folder}/{name}" if folder else name)
    return found


def _scanned(folder: str, descriptor: int) -> list[str]:
    found = []
    os.lseek(descriptor, 0, os.SEEK_SET)
    with os.scandir(descriptor) as entries:
        for entry in entries:
            if is_leftover(entry.name):
                continue
            if entry.is_file(follow_symlinks=False):
                found.append(entry.name)
            elif entry.is_symlink():
                raise symlink_refused(f"{folder}/{entry.name}" if folder else entry.name)
    return found
