"""Every link between documents arrives: the file is there, and so is the heading."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<!`)\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)|(?:src|href|srcset)=\"([^\"]+)\"")
PATH = re.compile(
    r"`((?:docs|configs|examples|benchmarks|tests|tools)/[\w./-]+\.(?:md|py|properties|svg))`"
)
FENCE = re.compile(r"^ *(```|~~~).*?^ *\1 *$", re.MULTILINE | re.DOTALL)


def documents() -> list[str]:
    folders = ("docs", "examples", "benchmarks")
    found = [*ROOT.glob("*.md"), *(f for name in folders for f in (ROOT / name).rglob("*.md"))]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


@cache
def anchors(path: Path) -> frozenset[str]:
    """The anchors of a page, made from its headings as GitHub does, and those written as HTML."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    found: set[str] = set(re.findall(r"(?:id|name)=\"([^\"]+)\"", text))
    count: dict[str, int] = {}
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found.add(slug if slug not in count else f"{slug}-{count[slug]}")
        count[slug] = count.get(slug, 0) + 1
    return frozenset(found)


@pytest.mark.parametrize("name", documents())
def test_every_link_of_a_page_has_a_target(name: str) -> None:
    page = ROOT / name
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    wrong = []
    for pair in LINK.findall(text):
        link = pair[0] or pair[1]
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    assert wrong == []


@pytest.mark.parametrize("name", documents())
def test_every_file_that_a_page_names_exists(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    missing = [path for path in PATH.findall(text) if not (ROOT / path).exists()]
    assert missing == [] or name == "CHANGELOG.md"


def links(page: Path) -> set[Path]:
    """The pages and folders that a page links to."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    found = [one or other for one, other in LINK.findall(text)]
    return {(page.parent / link.split("#")[0]).resolve() for link in found if ":" not in link}


def test_every_page_is_reachable_from_the_readme() -> None:
    seen: set[Path] = set()
    open_ones = [ROOT / "README.md"]
    while open_ones:
        page = open_ones.pop()
        if page in seen or not page.exists():
            continue
        seen.add(page)
        if page.is_dir():  # a folder shows its pages
            open_ones += page.glob("*.md")
        elif page.suffix == ".md":
            open_ones += links(page)
    pages = {path.resolve() for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(path.relative_to(ROOT).as_posix() for path in pages - seen) == []
