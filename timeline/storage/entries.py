"""What the file system says of a name, as the storage port's words."""

from __future__ import annotations

import os
import stat

from timeline.errors import MalformedNameError
from timeline.ports.storage import FileStat
from timeline.storage.folders import symlink_refused

__all__ = ["entry_of", "file_stat_of"]


def entry_of(name: str, found: os.stat_result, path: str) -> FileStat:
    """
    The entry of a file or folder.

    Raises:
        MalformedNameError: It is a symbolic link, a pipe or a device (SEC1).
    """
    if stat.S_ISLNK(found.st_mode):
        raise symlink_refused(path)
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        raise MalformedNameError(
            f"neither a file nor a folder, so not part of a table; remove it: {path!r}", path=path
        )
    return file_stat_of(name, found)


def file_stat_of(name: str, found: os.stat_result) -> FileStat:
    """The entry of what is known to be a file or folder."""
    is_folder = stat.S_ISDIR(found.st_mode)
    return FileStat(
        name=name,
        is_folder=is_folder,
        size_bytes=0 if is_folder else found.st_size,
        modified_ms=found.st_mtime_ns // 1_000_000,
        # Every rewrite is a new file under the old name, so the inode alone nearly suffices.
        version=f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}",
    )
