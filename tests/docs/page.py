"""
The blocks of a Markdown page, and the directives in the comments before them.

CONTRIBUTING.md lists the comments for authors; an unknown one is an error.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SERVICES = ("spark", "zookeeper", "dynamodb", "s3", "metastore")
LANGUAGES = {"python", "console", "properties"}
DIRECTIVES = {"needs", "file", "refused", "output", "not run"}

_FENCE = re.compile(r"( *)(`{3,}|~{3,})(.*)")
_DIRECTIVE = re.compile(r"\s*<!--\s*([a-z ]+?)\s*(?::\s*(.*?))?\s*-->\s*")
_HIDDEN = re.compile(r"\s*<!--\s*hidden\b(.*)")


class PageError(Exception):
    """A page that cannot be read as its rules say."""


@dataclass(frozen=True, slots=True)
class Block:
    """
    One block of a page.

    Args:
        language: The word after the fence, or ``python`` of a hidden block.
        text: Its lines.
        line: The number of its first line in the page.
        directives: The directives of the comments directly before it, by name.
    """

    language: str
    text: str
    line: int
    directives: dict[str, str] = field(default_factory=dict)

    @property
    def needs(self) -> frozenset[str]:
        """The services of its comment ``needs``."""
        return frozenset(filter(None, re.split(r"[,\s]+", self.directives.get("needs", ""))))

    @property
    def is_run(self) -> bool:
        if "not run" in self.directives:
            return False
        return self.language in LANGUAGES or bool({"file", "output"} & self.directives.keys())


@dataclass(frozen=True, slots=True)
class Page:
    """A page and its blocks from top to bottom."""

    name: str
    blocks: tuple[Block, ...]

    @property
    def needs(self) -> frozenset[str]:
        """Every service that some block of the page needs."""
        return frozenset().union(*(block.needs for block in self.blocks if block.is_run))


def pages() -> list[str]:
    """README.md and every page below docs/, as paths from the root of the repository."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path.relative_to(ROOT).as_posix() for path in found]


def read_page(name: str) -> Page:
    return parse_page(name, (ROOT / name).read_text(encoding="utf-8"))


def parse_page(name: str, text: str) -> Page:
    """
    Find the blocks of a page.

    Raises:
        PageError: A fence or a hidden block has no end, or a comment is unknown.
    """
    lines = text.splitlines()
    blocks: list[Block] = []
    directives: dict[str, str] = {}
    number = 0
    while number < len(lines):
        line = lines[number]
        if opened := _FENCE.fullmatch(line):
            end = _end_of_fence(name, lines, number, opened[2])
            body = textwrap.dedent("\n".join(lines[number + 1 : end]))
            language = opened[3].split()[0] if opened[3].split() else ""
            blocks.append(Block(language, body, number + 2, directives))
            directives, number = {}, end + 1
        elif _HIDDEN.fullmatch(line):
            end = number
            while end < len(lines) and "-->" not in lines[end]:
                end += 1
            if end == len(lines):
                raise PageError(f"{name}:{number + 1}: the hidden block has no end")
            blocks.append(Block("python", "\n".join(lines[number + 1 : end]), number + 2))
            number = end + 1
        else:
            if said := _DIRECTIVE.fullmatch(line):
                directives = {**directives, **_directive(name, number, said)}
            elif line.strip():
                directives = {}
            number += 1
    return Page(name, tuple(blocks))


def _end_of_fence(name: str, lines: list[str], start: int, fence: str) -> int:
    for number in range(start + 1, len(lines)):
        if lines[number].strip() == fence:
            return number
    raise PageError(f"{name}:{start + 1}: the block has no end")


def _directive(name: str, number: int, said: re.Match[str]) -> dict[str, str]:
    word, value = said[1], said[2] or ""
    if word not in DIRECTIVES:
        if "run" in word or word in {"need", "needed", "files"}:
            raise PageError(f"{name}:{number + 1}: unknown comment '{word}'")
        return {}  # any other comment is for people
    if word == "needs":
        unknown = sorted(set(re.split(r"[,\s]+", value)) - set(SERVICES))
        if unknown:
            raise PageError(
                f"{name}:{number + 1}: unknown service {unknown}, use one of {SERVICES}"
            )
    if word in {"not run", "file"} and not value:
        raise PageError(f"{name}:{number + 1}: '{word}' needs a value")
    return {word: value}
