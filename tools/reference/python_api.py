"""The page of the Python interface, from signatures and docstrings of ``hoodoo``."""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pkgutil import resolve_name
from typing import Any

import hoodoo
from timeline import errors

HEAD = """# Python

Made by `python -m tools.reference` from the code; do not edit by hand.

Import everything from `hoodoo`; the last classes are results of methods. Arguments after `*` are passed by name. A commit returns a [CommitResult](#commitresult); an
error is a [HoodooError](#errors) with a `kind` and a `reaction`. [Dataframes](../how-to/dataframes.md) has examples.

"""
FUNCTIONS = ("create_table", "open_table")
CLASSES = ("Table", "TableSnapshot", "CommitResult", "ConflictReport", "ReadSet")
#: Classes of results, which users do not import.
RESULTS = {
    "Merge": "hoodoo.row_changes:Merge",
    "InstantSummary": "hoodoo.inspect.instants:InstantSummary",
    "Verification": "hoodoo.verify.verify:Verification",
}
ENUMS = ("TableType", "Isolation", "WriteOperation", "Reaction")
#: Public in the code for other packages, but no part of the promise.
INTERNAL = {
    "config",
    "context",
    "current_state",
    "file_slices",
    "pin_if_allowed",
    "plan",
    "settings",
    "snapshot",
    "timeline",
    "view",
    "write",
}


def plain(text: str) -> str:
    """Return prose of a docstring as Markdown."""
    joined = " ".join(text.split()).replace("``", "`")
    joined = re.sub(r" \((?:[A-Z]{2,}(?:-[A-Z]+)*-?\d+(?:, )?)+\)", "", joined)  # clauses
    joined = re.sub(r" \(`timeline\.[a-z_.]+`\)", "", joined)  # an inner module
    joined = re.sub(r":[a-z]+:`~?([^`]+)`", r"`\1`", joined)
    return joined.replace("|", "\\|")


def signature(function: Callable[..., object], name: str) -> str:
    """Return the signature on one line, or with a line for each argument."""
    found = inspect.signature(function)
    kept = [one for key, one in found.parameters.items() if key != "self"]
    text = str(found.replace(parameters=kept))
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)  # annotations are texts
    text = re.sub(r"<[^>]*_UNSET[^>]*>|<object object[^>]*>", "...", text)
    line = f"{name}{text}"
    if len(line) <= 100:
        return line
    inner, _, result = text[1:].rpartition(")")
    parts = re.split(r", (?![^\[]*\])", inner)
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){result}"


def parts_of(docstring: str) -> dict[str, str]:
    """Return the sections of a docstring in Google's style; the text before them has no name."""
    found: dict[str, list[str]] = {"": []}
    current = ""
    for line in docstring.splitlines():
        heading = re.fullmatch(r"(Args|Raises|Returns|Yields):(.*)", line)
        if heading:
            current = heading[1]
            found[current] = [f"    {heading[2].strip()}"] if heading[2].strip() else []
        elif current and line and not line.startswith(" "):
            current = ""
            found[""] += ["", line]
        else:
            found[current].append(line)
    return {name: inspect.cleandoc("\n".join(lines)) for name, lines in found.items()}


def entries(text: str) -> list[tuple[str, str]]:
    """Return the names and meanings of a section such as Args."""
    found: list[tuple[str, str]] = []
    for line in text.splitlines():
        opened = re.match(r"(\*{0,2}[A-Za-z_][\w, ]*): +(.*)", line)
        if opened and not line.startswith(" "):
            found.append((opened[1], opened[2]))
        elif found:
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}")
        elif line.strip():
            found.append(("", line.strip()))
    return found


def prose(docstring: str) -> str:
    """Return a docstring as Markdown: prose, arguments, result, errors."""
    parts = parts_of(docstring)
    text = "\n\n".join(paragraph(one) for one in re.split(r"\n\s*\n", parts[""]) if one.strip())
    text += "\n"
    for section, column in (("Args", "Argument"), ("Raises", "Error")):
        named = [(name, meaning) for name, meaning in entries(parts.get(section, "")) if name]
        if named:
            rows = "".join(f"| `{name}` | {plain(meaning)} |\n" for name, meaning in named)
            text += f"\n| {column} | Meaning |\n|---|---|\n{rows}"
        elif parts.get(section):
            text += f"\nErrors: {plain(parts[section])}\n"
    for section in ("Returns", "Yields"):
        if parts.get(section):
            text += f"\n{section}: {plain(parts[section])}\n"
    return text


def paragraph(text: str) -> str:
    """Return one paragraph; lines that are set in become a block."""
    if all(line.startswith("    ") for line in text.splitlines()):
        return "```text\n" + inspect.cleandoc(text) + "\n```"
    if re.match(r"\s*- ", text):
        return "\n".join(plain_line(line) for line in text.splitlines())
    return plain(text)


def plain_line(line: str) -> str:
    """Return a line of a list."""
    return line.replace("``", "`")


def members_of(kind: type) -> list[tuple[str, Any]]:
    """Return the public methods and properties of a class, by name."""
    return [
        (name, inspect.getattr_static(kind, name))
        for name in dir(kind)
        if not name.startswith("_")
        and name not in INTERNAL
        and is_documented(inspect.getattr_static(kind, name))
    ]


def is_documented(member: Any) -> bool:
    """Return whether a member is a method or property with a docstring."""
    inner = getattr(member, "__func__", member)
    return bool(inspect.getdoc(member)) and (
        isinstance(member, property | classmethod | staticmethod) or inspect.isfunction(inner)
    )


def class_section(name: str) -> str:
    """Return the section of a class."""
    kind = resolve_name(RESULTS[name]) if name in RESULTS else getattr(hoodoo, name)
    text = f"\n## {name}\n\n{prose(inspect.getdoc(kind) or '')}"
    inherited = {one for base in kind.__mro__[1:-1] for one in vars(base)}
    shown = [
        (member, value)
        for member, value in members_of(kind)
        if name != "Table" or member not in inherited or member in vars(kind)
    ]
    if name == "Table":
        text += "\nA Table also has the methods of a [TableSnapshot](#tablesnapshot).\n"
    if is_dataclass(kind):
        rows = "".join(f"| `{one.name}` | `{one.type}` |\n" for one in fields(kind)).replace(
            " | None", " \\| None"
        )
        text += f"\n| Field | Type |\n|---|---|\n{rows}"
    for member, value in shown:
        text += f"\n### {name}.{member}\n\n"
        if isinstance(value, property):
            text += prose(inspect.getdoc(value) or "")
        else:
            inner = getattr(value, "__func__", value)
            text += (
                f"```text\n{signature(inner, member)}\n```\n\n{prose(inspect.getdoc(inner) or '')}"
            )
    return text


def enum_section(name: str) -> str:
    """Return the section of an enumeration."""
    kind = getattr(hoodoo, name)
    assert issubclass(kind, enum.Enum)
    names = ", ".join(f"`{one.name}`" for one in kind)
    return f"\n### {name}\n\n{prose(inspect.getdoc(kind) or '')}\nMembers: {names}.\n"


def errors_section() -> str:
    """Return the table of error classes."""
    rows = ""
    for name in sorted(errors.__all__):
        kind = getattr(errors, name)
        if inspect.isclass(kind) and issubclass(kind, errors.HoodooError):
            base = kind.__mro__[1].__name__
            first = (inspect.getdoc(kind) or "").split("\n\n")[0]
            rows += f"| `{name}` | `{base}` | `{kind.reaction.value}` | {plain(first)} |\n"
    return (
        "\n## Errors\n\nEach is an attribute of `hoodoo` and of `hoodoo.errors`. [Errors](errors.md) has an entry for each kind.\n\n"
        f"| Class | A kind of | Reaction | Meaning |\n|---|---|---|---|\n{rows}"
    )


def page() -> str:
    """Return the page."""
    titles = [*FUNCTIONS, *CLASSES, *RESULTS, "Choices", "Errors"]
    text = HEAD + "".join(f"- [{one}](#{one.lower()})\n" for one in titles)
    for name in FUNCTIONS:
        function = getattr(hoodoo, name)
        text += f"\n## {name}\n\n```text\n{signature(function, name)}\n```\n\n"
        text += prose(inspect.getdoc(function) or "")
    text += "".join(class_section(name) for name in (*CLASSES, *RESULTS))
    text += "\n## Choices\n" + "".join(enum_section(name) for name in ENUMS)
    return text + errors_section()
