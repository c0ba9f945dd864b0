"""
Compare the output of a command with the output that a page shows.

Times, ids, sizes and the widths of columns differ from run to run, so both texts are masked first.
A line ``...`` of the page matches any lines, and ``...`` within a line matches any text.
"""

from __future__ import annotations

import difflib
import io
import re
import socket
from pathlib import Path

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_MASKS = (
    (
        re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(?:-\d+)?\b"),
        "<id>",
    ),
    (
        re.compile(
            r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?(?: ?UTC|Z|[+-]\d\d:?\d\d)?"
        ),
        "<time>",
    ),
    (re.compile(r"\b\d\d:\d\d:\d\d(?:[.,]\d+)?\b"), "<time>"),
    (re.compile(r"(?<![\d.])20\d{12}(?:\d{3})?(?!\d)"), "<time>"),
    (re.compile(r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{8,64}(?:-\d+)*\b"), "<id>"),
    (
        re.compile(r'("\w*(?:bytes|size|_ms|pid|crc|seconds)\w*": )\d+(?:\.\d+)?'),
        r"\1<number>",
    ),
    (re.compile(r"\bpid \d+"), "pid <number>"),
    (
        re.compile(
            r"(?<![\w.])\d[\d,]*(?:\.\d+)? ?"
            r"(?:B|[kKMG]i?B|bytes?|ms|s|seconds?|min|minutes?|hours?|days?)\b"
        ),
        "<size>",
    ),
    (re.compile(r"[-─━═]{3,}"), "---"),
    (re.compile(r"[ \t]+"), " "),
)
ANY_LINES = "..."


class Screen(io.StringIO):
    """Standard output as a terminal: commands print tables for people on it."""

    def isatty(self) -> bool:
        return True

    def shown(self) -> str:
        """Return its text without colours."""
        return _ANSI.sub("", self.getvalue())


class Remarks(io.TextIOBase):
    """Standard error of the same terminal, but without bars of progress."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def write(self, text: str) -> int:
        return self._screen.write(text)


def difference(shown: str, printed: str, folder: Path) -> str | None:
    """
    Compare, and return None or both texts side by side as a diff.

    Args:
        shown: The output on the page.
        printed: The real output.
        folder: Where the command ran; its path counts as ``.``.
    """
    wanted = [_masked(line, folder) for line in shown.strip("\n").splitlines()]
    found = [_masked(line, folder) for line in printed.strip("\n").splitlines()]
    pattern = "".join(
        r"(?:.*\n)*?" if line == ANY_LINES else _pattern(line) + r"\n" for line in wanted
    )
    if re.fullmatch(pattern, "".join(line + "\n" for line in found)):
        return None
    return "\n".join(difflib.unified_diff(wanted, found, "page", "printed", lineterm="", n=99))


def _pattern(line: str) -> str:
    return ".*".join(re.escape(part.strip()) for part in line.split(ANY_LINES))


def _masked(line: str, folder: Path) -> str:
    line = line.replace(f"{folder}/", "./").replace(str(folder), ".")
    line = line.replace(socket.gethostname(), "<host>")
    for mask, name in _MASKS:
        line = mask.sub(name, line)
    return line.strip()
