"""
The one place where paths below a table are built and checked (SEC1, SEC2).

Names come from data (partition values), from the table's own files (plans, markers,
metadata) and from users; all of them are untrusted until they passed here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from timeline.errors import InvalidInputError, MalformedNameError

__all__ = ["check_partition_path", "check_relative_path", "join", "listed", "parent_folder"]

_SEGMENT_BYTES_MAX = 255
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\]")


def _refuse(path: str, why: str) -> MalformedNameError:
    return MalformedNameError(
        f"{why}; nothing was touched, correct the name or the file that holds it: {path!r}",
        path=path,
    )


def check_relative_path(path: str) -> str:
    """
    Return ``path`` when it names something strictly below the table.

    Raises:
        MalformedNameError: Empty, absolute, with empty, ``.`` or ``..`` segments, with control
            characters, backslashes or a segment above 255 bytes.
    """
    if not path:
        raise _refuse(path, "an empty path")
    if _FORBIDDEN.search(path):
        raise _refuse(path, "a path with control characters or backslashes")
    for segment in path.split("/"):
        if segment in ("", ".", ".."):
            raise _refuse(path, "a path that is absolute or leaves its folder")
        if len(segment) > 63 and len(segment.encode()) > _SEGMENT_BYTES_MAX:
            raise _refuse(path, "a path with a segment above 255 bytes")
    return path


def check_partition_path(partition_path: str) -> str:
    """
    Return a partition path that may be used as a folder; ``""`` is the unpartitioned table.

    Raises:
        MalformedNameError: As ``check_relative_path``, or a path into ``.hoodie``.
    """
    if partition_path == "":
        return partition_path
    check_relative_path(partition_path)
    if partition_path == ".hoodie" or partition_path.startswith(".hoodie/"):
        raise _refuse(partition_path, "a partition path inside the table's own folder")
    return partition_path


def listed(names: object, what: str) -> tuple[str, ...]:
    """
    Names that a caller gave. A text would be a list of its letters, and each may be a name.

    Raises:
        InvalidInputError: One text, or what is no list or no text in it: a number equals no name,
            and would mean nothing wherever names are compared.
    """
    if isinstance(names, str):
        raise InvalidInputError(
            f"{what} are a list of texts; put the one into brackets: [{names!r}]", kind="one_text"
        )
    found = tuple(names) if isinstance(names, Iterable) else (names,)
    if not all(issubclass(kind, str) for kind in set(map(type, found))):  # few, of many keys
        strange = next(one for one in found if not isinstance(one, str))
        raise InvalidInputError(
            f"{what} are a list of texts, as the table spells them: {strange!r}", kind="no_text"
        )
    return found


def join(*segments: str) -> str:
    """Join relative pieces, dropping empty ones (the unpartitioned table's), and check the result."""
    return check_relative_path("/".join(piece for piece in segments if piece))


def parent_folder(path: str) -> str:
    """The folder of a path; ``""`` for the table's base folder."""
    return path.rpartition("/")[0]
