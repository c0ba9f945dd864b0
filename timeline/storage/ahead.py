"""
Temporary files that are written and made durable before their object is created.

Waiting for the disk is most of a small commit. The bytes of the completed file are known
before the slot is taken that decides about it, so both wait for the disk at once.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass

from timeline.errors import MalformedNameError
from timeline.machine import Started, start_beside
from timeline.storage.folders import OpenFolder

__all__ = ["StagedFiles"]

Written = tuple[OpenFolder, str]  # the folder of a temporary file, and its name


@dataclass(frozen=True, slots=True, kw_only=True)
class _Staged:
    data: bytes
    written: Started[Written]

    def drop(self) -> None:
        self.written.afterwards(_remove)


class StagedFiles:
    """Temporary files that are being written for objects to come, by the object's path."""

    def __init__(self) -> None:
        self._files: dict[str, _Staged] = {}

    def begin(self, path: str, data: bytes, write: Callable[[], Written]) -> None:
        """Have ``write`` make a durable temporary file of these bytes, beside the caller."""
        self.drop(path)
        with contextlib.suppress(RuntimeError):  # the interpreter ends: no new threads
            self._files[path] = _Staged(data=data, written=start_beside(write))

    def take(self, path: str, data: bytes, folder: int) -> str | None:
        """
        The finished temporary file for an object, which then is the caller's to remove.

        Args:
            path: The object.
            data: What it must consist of.
            folder: Descriptor of the folder it must lie in.

        Returns:
            None when there is none, or it failed: the caller's own attempt will say why.
        """
        staged = self._files.pop(path, None)
        if staged is None:
            return None
        if staged.data == data:
            try:
                opened, name = staged.written.wait()
            except (OSError, MalformedNameError):
                return None
            if os.path.samestat(os.fstat(opened.descriptor), os.fstat(folder)):
                return name
        staged.drop()
        return None

    def drop(self, path: str) -> None:
        """Take away what nobody took; none is no error."""
        staged = self._files.pop(path, None)
        if staged is not None:
            staged.drop()


def _remove(written: Written) -> None:
    # A temporary name is hidden from listings: what stays behind is seen by nobody.
    opened, name = written
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=opened.descriptor)
