"""The paths of a load: a table, or folders and patterns below it, as Hudi takes them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from hoodoo.catalog import open_table
from hoodoo.configuration import Layers
from hoodoo.table import Table
from timeline.errors import InvalidInputError, TableNotFoundError

_FILES = ("*", "*.parquet")
_CHOICE = re.compile(r"\{([^{}]*)\}")
_PARENTS_MAX = 32


@dataclass(frozen=True, slots=True)
class PathSelection:
    """
    The partitions that the paths of a load select.

    Args:
        patterns: Paths relative to the table. ``*``, ``?``, ``[a-z]`` and ``{a,b}`` match within a
            level. A pattern selects the partitions below it, and those whose files it matches.
    """

    patterns: tuple[str, ...]

    def partitions(self, paths: Sequence[str]) -> list[str]:
        """
        Return the selected partition paths among those of the table.

        Raises:
            InvalidInputError: A pattern selects none (``path``).
        """
        chosen: set[str] = set()
        for pattern in self.patterns:
            found = [path for path in paths if self._selects(pattern, path)]
            if paths and not found:
                raise InvalidInputError(
                    "the path selects no partition of the table: load the table's path, or "
                    f"folders of partitions such as {sorted(paths)[:3]}: {pattern!r}",
                    kind="path",
                    path=pattern,
                )
            chosen.update(found)
        return sorted(chosen)

    def _selects(self, pattern: str, path: str) -> bool:
        levels = path.split("/") if path else []
        for each in _alternatives(pattern):
            wanted = each.split("/")
            if len(wanted) == len(levels) + 1 and wanted[-1] in _FILES:
                wanted = wanted[:-1]
            if len(wanted) <= len(levels) and all(
                fnmatchcase(level, one.replace("[^", "[!"))
                for level, one in zip(levels, wanted, strict=False)
            ):
                return True
        return False


def open_selected(paths: Sequence[str], layers: Layers) -> tuple[Table, str, PathSelection | None]:
    """
    Open the table of the given paths: itself, or folders and patterns below its base path.

    As in Hudi, the base path is the nearest folder above that is a table.

    Returns:
        The table, its path in the spelling of the first path, and the selection; None for all rows.

    Raises:
        TableNotFoundError: Neither the first path nor a folder above it is a table.
        InvalidInputError: A path is not below the table (``path``).
    """
    first = paths[0].rstrip("/") or paths[0]
    try:
        table, base = open_table(first, properties=layers), first
    except TableNotFoundError as error:
        table, base = _opened_above(first, layers, error)
    patterns: list[str] = []
    for path in paths:
        clean = path.rstrip("/")
        if clean == base:
            return table, base, None
        relative = clean.removeprefix(f"{base}/")
        if relative == clean or {".", "..", ""} & {*relative.split("/")}:
            table.close()
            raise InvalidInputError(
                f"a load reads one table, and this path is not below it: pass folders of {base!r} "
                f"only, in the same spelling: {path!r}",
                kind="path",
                path=path,
            )
        patterns.append(relative)
    return table, base, PathSelection(tuple(patterns))


def matching_glob(glob: str, paths: Sequence[str]) -> list[str]:
    """
    Return the partition paths whose files a pattern matches, as Hudi matches it in a range.

    The pattern is for the end of a file's path: ``/2026-*/*``. ``*`` matches across levels.
    """
    patterns = [f"*{each.replace('[^', '[!')}" for each in _alternatives(glob)]
    files = {path: f"/{path}/file.parquet" if path else "/file.parquet" for path in paths}
    return [path for path, file in files.items() if any(fnmatchcase(file, p) for p in patterns)]


def _opened_above(path: str, layers: Layers, error: TableNotFoundError) -> tuple[Table, str]:
    for folder in _parents(path):
        try:
            return open_table(folder, properties=layers), folder
        except TableNotFoundError:
            continue
    raise error


def _parents(path: str) -> Iterator[str]:
    """Yield the folders above a path, nearest first, without those that are patterns."""
    scheme, sign, rest = path.rpartition("://")
    levels = rest.split("/")
    for count in range(len(levels) - 1, max(0, len(levels) - _PARENTS_MAX), -1):
        folder = "/".join(levels[:count])
        is_root = not folder or folder.endswith(":")  # ``file:`` is no folder
        if not is_root and not any(character in folder for character in "*?[{"):
            yield f"{scheme}{sign}{folder}"


def _alternatives(pattern: str) -> list[str]:
    """Return the patterns without ``{a,b}`` that together mean a pattern."""
    found = _CHOICE.search(pattern)
    if found is None:
        return [pattern]
    before, after = pattern[: found.start()], pattern[found.end() :]
    choices = found.group(1).split(",")
    return [each for choice in choices for each in _alternatives(f"{before}{choice}{after}")]
