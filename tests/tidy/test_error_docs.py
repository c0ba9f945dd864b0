"""Each kind of error has an entry on the page of errors, and each entry a kind."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

from timeline import errors

ROOT = Path(__file__).parents[2]
PACKAGES = ("timeline", "lockproviders", "filegroups", "tableservices", "hoodoo")
#: Constants of other ``kind=`` arguments: kinds of Avro types, and of a sort.
OTHER = {"bytes", "enum", "fixed", "stable", "string"}
#: Modules whose ``kind`` is that of a finding, which is no error, or of a type.
NO_ERRORS = ("hoodoo/verify/", "hoodoo/history_checker/", "filegroups/schema/avro_schema.py")


@cache
def trees() -> dict[str, list[ast.AST]]:
    """Return the nodes of each module, by its path."""
    return {
        path.relative_to(ROOT).as_posix(): list(ast.walk(ast.parse(path.read_text())))
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    }


def nodes() -> Iterator[ast.AST]:
    return chain.from_iterable(trees().values())


def kinds_of(value: ast.expr | None) -> set[str]:
    """Return the kinds that an expression may be."""
    if isinstance(value, ast.IfExp):
        return kinds_of(value.body) | kinds_of(value.orelse)
    constant = value.value if isinstance(value, ast.Constant) else None
    return {constant} if re.fullmatch("[a-z][a-z0-9_]*", str(constant)) else set()


def passed_kinds() -> set[str]:
    """Return the kinds that reach an error by a name, or by a parameter with the name kind."""
    positions: dict[str, int] = {}
    for node in nodes():
        if isinstance(node, ast.FunctionDef):
            names = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
            if "kind" in names:
                positions[node.name] = names.index("kind") - (names[0] in {"self", "cls"})
    found: set[str] = set()
    keywords = [one.value for one in nodes() if isinstance(one, ast.keyword) and one.arg == "kind"]
    constants = {one.id for one in keywords if isinstance(one, ast.Name) and one.id.isupper()}
    for path, inside in trees().items():
        if path.startswith(NO_ERRORS):
            continue
        given = [one.value for one in inside if isinstance(one, ast.keyword) and one.arg == "kind"]
        by_name = constants | {one.id for one in given if isinstance(one, ast.Name)}
        for value in given:
            found |= kinds_of(value)
        for node in inside:
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                place = positions.get(name, len(node.args))
                found |= kinds_of(node.args[place]) if place < len(node.args) else set()
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if by_name & {getattr(one, "id", "") for one in targets}:
                    found |= kinds_of(node.value)
    return found


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
    assert sorted(passed_kinds() - OTHER - set(entries)) == []
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


def test_each_message_on_the_page_of_recovery_is_one_of_the_code() -> None:
    page = (ROOT / "docs/recovery.md").read_text()
    quoted = re.findall(r"^(?:\| |- )`([a-z]+(?: [A-Za-z.]+){4,})`(?: \||:)", page, re.MULTILINE)
    assert len(quoted) > 3
    texts = "\n".join(
        one.value for one in nodes() if isinstance(one, ast.Constant) and isinstance(one.value, str)
    )
    assert [one for one in quoted if one not in texts] == []


def test_a_printed_error_ends_with_the_anchor_of_its_kind() -> None:
    error = errors.LockTimeoutError("the lock was not free", holder="h")
    assert str(error) == "the lock was not free [see docs/reference/errors.md#lock_timeout]"
    assert error.message == error.as_document()["message"] == "the lock was not free"
    anchors = re.findall(r"^### `(\w+)`$", (ROOT / errors.ERRORS_PAGE).read_text(), re.MULTILINE)
    assert error.kind in anchors
