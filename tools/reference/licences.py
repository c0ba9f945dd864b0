"""The page of licences, from the metadata of the installed packages."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
DEVELOPMENT = {"dev", "bench", "all"}
#: The oldest Python that is served, on Linux; some packages need others on other systems.
ENVIRONMENT = {
    "python_version": "3.11",
    "python_full_version": "3.11.0",
    "sys_platform": "linux",
    "platform_system": "Linux",
    "os_name": "posix",
    "platform_python_implementation": "CPython",
    "implementation_name": "cpython",
    "platform_machine": "x86_64",
}
NAME_LENGTH_MAX = 40
HEAD = """# Licences

Made by `python -m tools.reference` from the metadata of the packages; do not edit by hand.

hoodoo has the licence Apache-2.0. Its text is in the file `LICENSE` of the wheel. The wheel holds no code of other packages: pip installs
them. This page lists the packages of the core and of each extra, for Python 3.11 on Linux. The names of licences are those of each
package's authors.
"""


def licence(name: str) -> str:
    """Return the licence that the metadata of an installed package states."""
    metadata = distribution(name).metadata.json
    stated = str(metadata.get("license_expression") or "")
    text = str(metadata.get("license") or "").strip()
    if not stated and 0 < len(text) <= NAME_LENGTH_MAX and "\n" not in text:
        stated = text
    classifiers = [
        one.rpartition(" :: ")[2]
        for one in metadata.get("classifier") or ()
        if one.startswith("License ::")
    ]
    return stated or ", ".join(classifiers) or first_line(text) or "not stated"


def first_line(text: str) -> str:
    """Return the first line of a licence's text, which usually is its name."""
    return text.splitlines()[0].strip() if text else ""


def needed(requirements: Iterable[str], extras: Iterable[str] = ()) -> set[str]:
    """Return the packages that requirements bring, with all that these need in turn."""
    found: set[str] = set()
    waiting = [(Requirement(one), ("", *extras)) for one in requirements]
    while waiting:
        one, wanted = waiting.pop()
        markers = one.marker
        if markers and not any(markers.evaluate({**ENVIRONMENT, "extra": each}) for each in wanted):
            continue
        name = canonicalize_name(one.name)
        key = f"{name}[{','.join(sorted(one.extras))}]"
        if key in found:
            continue
        found.add(key)
        try:
            inner = distribution(name).requires or []
        except PackageNotFoundError as error:
            raise SystemExit(f"{name} is not installed: run `make install` first") from error
        waiting += [(Requirement(each), ("", *one.extras)) for each in inner]
    return {key.partition("[")[0] for key in found}


def expanded(extra: str, extras: dict[str, list[str]]) -> list[str]:
    """Return the requirements of an extra; other extras of hoodoo in it are replaced by theirs."""
    found = []
    for one in extras[extra]:
        own = re.fullmatch(r"hoodoo\[([a-z,-]+)\]", one)
        if own is None:
            found.append(one)
        else:
            found += [each for name in own[1].split(",") for each in expanded(name, extras)]
    return found


def section(title: str, names: set[str]) -> str:
    """Return the table of some packages."""
    rows = "".join(f"| {name} | {licence(name)} |\n" for name in sorted(names))
    return f"\n## {title}\n\n| Package | Licence |\n|---|---|\n{rows}"


def page() -> str:
    """Return the page."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    core = needed(project["dependencies"])
    text = HEAD + section("Core", core)
    for extra in extras:
        if extra not in DEVELOPMENT:
            more = needed(expanded(extra, extras)) - core
            text += section(f"Extra {extra}", more)
    return text
