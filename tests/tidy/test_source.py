"""
House rules that a linter does not know: sizes, names, words and secrets.

They read the repository as text, so they hold for files of every kind.
"""

from __future__ import annotations

import ast
import re
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("timeline", "lockproviders", "filegroups", "tableservices", "hoodoo")
FOREIGN = ("tests/interop/oracles", "tests/interop/golden", "benchmarks")  # unchanged copies
TEXT = {".py", ".md", ".toml", ".txt", ".in", ".properties", ".json", ".yml", ".java", ""}

MODULE_LINES_MAX = 700
CONFTEST_LINES_MAX = 150
BANNED_MODULES = {"utils", "util", "helpers", "helper", "common", "misc", "base", "manager"}
# Written in pieces, so that this file does not find itself.
BANNED_WORDS = ("TO" + "DO", "FIX" + "ME", "X" + "XX")
LEAKS = {
    "an absolute path of one machine": re.compile(r"(?<![\w./-])/(?:work|root|home/\w+)/\w"),
    "the address of a package registry": re.compile(
        r"https?://[^\s\"')>]*(?:"
        + "|".join(("py" + "pi", "pythonhosted", "mvn" + "repository", "maven", "crates", "npmjs"))
        + r")|--(?:extra-)?index"
        + r"-url|--find"
        + r"-links(?!\")",
    ),
}


def sources() -> list[Path]:
    """Every Python file of the four packages."""
    return sorted(f for package in PACKAGES for f in (ROOT / package).rglob("*.py"))


def written() -> list[Path]:
    """Every text file of the repository that was written for it."""
    found = []
    for top in sorted(ROOT.iterdir()):
        if top.name in {".git", ".work", "build", "dist"} or top.name.startswith(".venv"):
            continue
        if top.name.startswith(".") and top.name not in {".ci", ".gitignore"}:
            continue
        files = [top] if top.is_file() else top.rglob("*")
        found += [f for f in files if f.is_file() and f.suffix in TEXT and not is_foreign(f)]
    return sorted(found)


def is_foreign(file: Path) -> bool:
    """Whether a file was not written for this repository."""
    name = file.relative_to(ROOT).as_posix()
    ours = name == "benchmarks/bench.py" or name.startswith("benchmarks/adapters/hoodoo")
    return "__pycache__" in name or (name.startswith(FOREIGN) and not ours)


def label(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def test_no_module_is_longer_than_the_limit() -> None:
    lengths = {label(f): len(f.read_text(encoding="utf-8").splitlines()) for f in sources()}
    assert {name: n for name, n in lengths.items() if n > MODULE_LINES_MAX} == {}


def test_conftest_files_stay_small() -> None:
    files = (ROOT / "tests").rglob("conftest.py")
    lengths = {label(f): len(f.read_text(encoding="utf-8").splitlines()) for f in files}
    assert {name: n for name, n in lengths.items() if n > CONFTEST_LINES_MAX} == {}


def test_no_module_has_a_meaningless_name() -> None:
    assert [label(f) for f in sources() if f.stem in BANNED_MODULES] == []


def test_every_module_has_a_docstring() -> None:
    silent = [
        label(f)
        for f in sources()
        if f.stat().st_size and not ast.get_docstring(ast.parse(f.read_text(encoding="utf-8")))
    ]
    assert silent == []


def test_every_package_ships_its_types() -> None:
    assert [p for p in PACKAGES if not (ROOT / p / "py.typed").is_file()] == []


def test_no_open_task_is_left_in_the_source() -> None:
    pattern = re.compile(r"\b(?:" + "|".join(BANNED_WORDS) + r")\b")
    found = [
        f"{label(f)}:{number}"
        for f in written()
        for number, line in enumerate(f.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


@pytest.mark.parametrize("what", LEAKS)
def test_no_path_or_registry_of_one_machine_is_in_the_repository(what: str) -> None:
    found = [
        f"{label(f)}:{number}: {line.strip()[:80]}"
        for f in written()
        if label(f) not in {"tests/tidy/test_source.py", "tools/pin_requirements.py"}
        for number, line in enumerate(f.read_text(encoding="utf-8").splitlines(), 1)
        if LEAKS[what].search(line)
    ]
    assert found == []


def test_requirements_are_pinned_with_hashes() -> None:
    loose = []
    for file in sorted((ROOT / "requirements").glob("*.txt")):
        text = file.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in text.splitlines():
            entry = line.split("#")[0].strip()
            if entry and not re.match(r"[\w.\[\]-]+==\S+ .*--hash=sha256:", entry):
                loose.append(f"{file.name}: {entry[:60]}")
    assert loose == []


def test_the_core_is_pinned_as_the_project_declares_it() -> None:
    """`requirements/core.in` and pyproject.toml must name the same packages."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {re.match(r"[\w-]+", entry)[0] for entry in project["dependencies"]}
    lines = (ROOT / "requirements" / "core.in").read_text(encoding="utf-8").splitlines()
    pinned = {re.match(r"[\w-]+", x)[0] for x in lines if x and not x.startswith("#")}
    assert declared == pinned


NOUN_AFTER_NUMBER = re.compile(
    r" (?:rows|files|instants|groups|writes|commits|slots|slices|keys|partitions|columns|problems"
    r"|attempts|records|batch ids|conflicts)\b(?!=)"
)
NEVER_ONE = re.compile(r"_MAX|_max\b|_TRIES|counted\(|rows_text|rows_deleted$|^name$|^size$")


def test_every_count_of_a_message_uses_the_helper_for_one() -> None:
    """A message says "1 row": ``timeline.errors.counted`` writes a number before its noun."""
    found = [
        f"{label(file)}:{after.lineno}: {{{ast.unparse(number.value)}}}{after.value[:20]}"
        for file in sources()
        for text in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(text, ast.JoinedStr)
        for number, after in pairwise(text.values)
        if isinstance(number, ast.FormattedValue)
        and number.format_spec is None  # a large number, with thousands separators
        and isinstance(after, ast.Constant)
        and NOUN_AFTER_NUMBER.match(str(after.value))
        and not NEVER_ONE.search(ast.unparse(number.value))
    ]
    assert found == []
