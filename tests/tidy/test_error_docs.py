"""Each kind of error has an entry on the page of errors, and each entry a kind."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from timeline import errors

ROOT = Path(__file__).parents[2]
PACKAGES = ("timeline", "lockproviders", "filegroups", "tableservices", "hoodoo")
#: Constants of other ``kind=`` arguments: kinds of Avro types, and of a sort.
OTHER = {"bytes", "enum", "fixed", "stable", "string"}


def nodes() -> Iterator[ast.AST]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield from ast.walk(ast.parse(path.read_text()))


def test_each_error_kind_has_an_entry_with_cause_fix_and_reaction() -> None:
    page = (ROOT / errors.ERRORS_PAGE).read_text()
    entries = dict(
        re.findall(r"^### `([a-z0-9_]+)`\n(.*?)(?=^##|\Z)", page, re.DOTALL | re.MULTILINE)
    )
    classes = {name: getattr(errors, name) for name in errors.__all__ if name.endswith("Error")}
    texts, kinds, plain = set(), set(), set()
    for node in nodes():
        name = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
        if name in classes and not {"kind", None} & {one.arg for one in node.keywords}:
            plain.add(classes[name].default_kind)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.add(node.value)
        elif isinstance(node, ast.ClassDef) and node.name.endswith("Error"):
            name = node.name.removesuffix("Error")
            texts.add(re.sub(r"(?<=.)([A-Z])", r"_\1", name).lower())  # its default kind
        elif isinstance(node, ast.keyword) and node.arg == "kind":
            found = node.value.value if isinstance(node.value, ast.Constant) else None
            kinds |= {found} if isinstance(found, str) else set()
    assert sorted(kinds - OTHER - set(entries)) == []
    assert sorted(plain - set(entries)) == []
    assert sorted(set(entries) - texts) == []
    assert len(entries) > 250
    for kind, entry in entries.items():
        named = re.findall(r"`(\w+Error)`", entry.split("**Cause.**")[0])
        reactions = {classes[name].reaction.value for name in named if name in classes}
        said = set(re.findall(r"after it: ([a-z_]+)", entry)) | set(
            re.findall(r"after it: [a-z_, ]*\b(?:or|and) ([a-z_]+)", entry)
        )
        assert named or kind == "setting_ignored", kind  # a warning
        assert not reactions or reactions & said, (kind, reactions, said)
        assert "**Cause.** " in entry, kind
        assert "**Fix.** " in entry, kind


def test_a_printed_error_ends_with_the_anchor_of_its_kind() -> None:
    error = errors.LockTimeoutError("the lock was not free", holder="h")
    assert str(error) == "the lock was not free [see docs/reference/errors.md#lock_timeout]"
    assert error.message == error.as_document()["message"] == "the lock was not free"
    anchors = re.findall(r"^### `(\w+)`$", (ROOT / errors.ERRORS_PAGE).read_text(), re.MULTILINE)
    assert error.kind in anchors
