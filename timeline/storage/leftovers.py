"""
Names that no listing shows: what file systems and half-done writes leave behind (LOC-3).

They are known by name only, in one place, so that every adapter hides the same ones:
Hadoop's checksum files, our own temporary files, and the temporary files Java renames
(``<name>.<uuid>``, fmt 1 and 2).
"""

from __future__ import annotations

import re

__all__ = ["TEMPORARY_PREFIX", "checksum_sibling", "is_leftover", "is_temporary"]

TEMPORARY_PREFIX = ".tmp-"

_TEMPORARY = re.compile(re.escape(TEMPORARY_PREFIX) + r"[0-9a-f]{32}\Z")
_UUID_SUFFIX = re.compile(r"\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_UUID_SUFFIX_LENGTH = 37


def is_leftover(name: str) -> bool:
    """Tell whether a file of this name is hidden from listings."""
    if name.endswith(".crc") or name.startswith(TEMPORARY_PREFIX):
        return True
    # The dot's place is looked at first: the pattern would cost a third of a big listing.
    if len(name) <= _UUID_SUFFIX_LENGTH or name[-_UUID_SUFFIX_LENGTH] != ".":
        return False
    return _UUID_SUFFIX.search(name) is not None


def is_temporary(name: str) -> bool:
    """Tell whether a file of this name is a temporary one of ours: the prefix and a nonce."""
    return _TEMPORARY.match(name) is not None


def checksum_sibling(name: str) -> str:
    """Name of the checksum file that Java's local file system keeps beside ``name``."""
    return f".{name}.crc"
