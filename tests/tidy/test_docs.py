"""The promises of the documents must stay true: options, clauses, commands."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click

from hoodoo.cli.app import main
from tools.reference.json_shapes import WITHOUT_SECTION

ROOT = Path(__file__).parents[2]


def test_generated_pages_of_the_reference_are_up_to_date() -> None:
    check = subprocess.run(
        [sys.executable, "-m", "tools.reference", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert check.returncode == 0, check.stdout + check.stderr


def commands_of(group: click.Command, words: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the name of each command, such as ``locks break``."""
    if not isinstance(group, click.Group):
        yield " ".join(words)
        return
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        yield from commands_of(found, (*words, name))


def test_every_command_with_a_document_has_its_section_in_the_json_page() -> None:
    page = (ROOT / "docs/reference/json.md").read_text(encoding="utf-8")
    titles = re.findall(r"^## (?:hoodoo )?(.*)", page, re.MULTILINE)
    described = {title.split(" --")[0] for title in titles} | {"committer"}
    assert {"The health file of a committer", "The health file of a worker"} <= set(titles)
    commands = set(commands_of(main))
    assert len(commands) > 30
    assert commands - described == WITHOUT_SECTION


#: Limits that hoodoo cannot remove: the time windows that stay open when Java writes too.
ADMITTED = {"FOR-8"}


def test_every_clause_of_the_protocol_has_a_test_that_names_it() -> None:
    known = clauses()
    named = set()
    for path in (ROOT / "tests").rglob("*.py"):
        named |= set(re.findall(r'pytest\.mark\.spec\("([^"]+)"\)', path.read_text()))
    for path in (ROOT / "timeline/testing").glob("*_suite.py"):  # shipped, run by conformance
        for text in re.findall(r'def test_[^\n]*\n\s+"""(.*?)"""', path.read_text(), re.DOTALL):
            named |= set(re.findall(r"\b(?:[A-Z]+-)+\d+\b", text))
    assert sorted(known - named - ADMITTED) == []
    assert sorted(ADMITTED & named) == []
    built = {name for name in named if name.split("-")[0] in {one.split("-")[0] for one in known}}
    assert sorted(built - known) == []


def clauses() -> set[str]:
    pages = (ROOT / f"docs/spec/{name}.md" for name in ("protocol", "metadata-table"))
    text = "\n".join(page.read_text() for page in pages)
    return set(re.findall(r"\*\*([A-Z]+(?:-[A-Z]+)*-\d+)\*\*", text))


def test_every_clause_cited_in_the_code_is_in_the_protocol() -> None:
    known = clauses()
    cited = set()
    for package in ("timeline", "lockproviders", "filegroups", "tableservices", "hoodoo"):
        for path in (ROOT / package).rglob("*.py"):
            for found in re.findall(r"\b((?:[A-Z]+-)+\d+)\b", path.read_text()):
                if found.split("-")[0] in {clause.split("-")[0] for clause in known}:
                    cited.add((found, str(path.relative_to(ROOT))))
    unknown = sorted((clause, path) for clause, path in cited if clause not in known)
    assert unknown == []


def test_every_security_rule_cited_is_in_the_security_document() -> None:
    rules = set(re.findall(r"^\| (SEC\d+) \|", (ROOT / "SECURITY.md").read_text(), re.MULTILINE))
    places = ("timeline", "lockproviders", "filegroups", "tableservices", "hoodoo", "tests", "docs")
    files = [
        path for place in places for kind in ("*.py", "*.md") for path in (ROOT / place).rglob(kind)
    ]
    cited = {found for path in files for found in re.findall(r"\bSEC\d+\b", path.read_text())}
    assert len(cited) > 10
    assert sorted(cited - rules) == []


def test_nothing_that_a_user_writes_imports_an_inner_package() -> None:
    """The shipped suite for lock providers is the one exception; it needs pytest."""
    inner = r"(?:timeline|filegroups|tableservices|lockproviders(?!\.testing\b))"
    imports = re.compile(rf"^\s*(?:from|import) {inner}\b.*", re.MULTILINE)
    modules = re.compile(rf"`({inner})\.([a-z_]+)\b[^`]*`")
    folders = ("docs", "docs/locks", "docs/how-to", "docs/concepts", "docs/reference")
    pages = [ROOT / "README.md", *(page for f in folders for page in (ROOT / f).glob("*.md"))]
    examples = [f for kind in ("*.py", "*.md") for f in (ROOT / "examples").rglob(kind)]
    found = []
    for path in (*pages, *examples, *(ROOT / "hoodoo/cli").glob("*.py")):
        text = path.read_text()
        if path.parent.name != "cli":
            found += [f"{path.name}: {line.strip()}" for line in imports.findall(text)]
        found += [
            f"{path.name}: {package}.{name}"
            for package, name in modules.findall(text)
            if (ROOT / package / name).exists() or (ROOT / package / f"{name}.py").exists()
        ]
    assert found == []


def test_readme_names_every_extra_for_users() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(project["optional-dependencies"]) - {"dev", "bench"}
    table = (ROOT / "README.md").read_text(encoding="utf-8").split("## Two writers")[0]
    rows = "".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`([a-z-]+)`", rows)) == extras
