"""
The imports between modules, read from the sources: they show what a change cannot affect yet.

All modules that do not lead to a changed one are imported once, before its mutants are forked.
"""

from __future__ import annotations

import ast
import importlib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("timeline", "tableservices", "lockproviders")
SHARED = ("timeline", "tableservices")
FOREIGN = (
    *("pyarrow.compute", "pyarrow.dataset", "pyarrow.parquet", "numpy", "fastavro", "pydantic"),
    *("hypothesis.strategies", "hypothesis.stateful", "greenlet", "xxhash"),
)


def name_of(path: str) -> str:
    """``timeline/commit_log.py`` -> ``timeline.commit_log``."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported_by(file: Path, known: set[str]) -> set[str]:
    """The known modules that a file names in its imports, their packages included."""
    return set(_named_in(file)) & known


@cache
def _named_in(file: Path) -> frozenset[str]:
    named: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            named |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    parts = [name.split(".") for name in named]
    return frozenset(".".join(p[:n]) for p in parts for n in range(1, len(p) + 1))


def engine_modules() -> dict[str, Path]:
    """Name -> file of every module of the engine."""
    files = [f for package in PACKAGES for f in sorted((ROOT / package).rglob("*.py"))]
    return {name_of(f.relative_to(ROOT).as_posix()): f for f in files}


def graph_of_engine() -> dict[str, set[str]]:
    """Module -> the modules it imports."""
    modules = engine_modules()
    return {name: imported_by(file, set(modules)) for name, file in modules.items()}


def apart_from(changed: set[str], graph: dict[str, set[str]]) -> list[str]:
    """The modules that never lead to a changed one; a package is imported with each of its own."""
    touched = changed
    while True:
        more = {
            name
            for name, imports in graph.items()
            if imports & touched or any(name.startswith(f"{package}.") for package in touched)
        }
        if more <= touched:
            return sorted(set(graph) - touched)
        touched = touched | more


def preload(changed: set[str]) -> None:
    """Import the modules that the mutants have in common."""
    apart = apart_from(changed, graph_of_engine())
    shared = [n for n in apart if n.startswith(SHARED) and ".testing" not in n]
    for name in (*FOREIGN, *shared):
        importlib.import_module(name)
