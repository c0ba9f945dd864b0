"""
hoodoo: an engine for Apache Hudi tables in Python.

    import hoodoo
    table = hoodoo.create_table("flights", schema=schema, record_key=["flight", "day"])
    table.upsert(rows)
    table.to_arrow()

The package imports each name below at its first use, and likewise each error class of
``hoodoo.errors``, such as ``hoodoo.ConflictError``.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from filegroups.keys.bucketing import SimpleBucketAssigner
    from filegroups.reading.read_set import ReadSet
    from filegroups.table import TableSnapshot
    from filegroups.writing.write_request import CommitResult
    from hoodoo import errors
    from hoodoo.catalog import create_table, open_table
    from hoodoo.table import Table
    from timeline.commit.conflict_report import ConflictReport
    from timeline.errors import *  # noqa: F403 - each error class
    from timeline.errors import HoodooError, Reaction
    from timeline.model.commit_metadata import TableType, WriteOperation
    from timeline.rules.isolation import Isolation
    from timeline.snapshot import Snapshot

__all__ = [
    "CommitResult",
    "ConflictReport",
    "HoodooError",
    "Isolation",
    "Reaction",
    "ReadSet",
    "SimpleBucketAssigner",
    "Snapshot",
    "Table",
    "TableSnapshot",
    "TableType",
    "WriteOperation",
    "create_table",
    "errors",
    "open_table",
]

_EXPORTS = {
    "CommitResult": "filegroups.writing.write_request:CommitResult",
    "ConflictReport": "timeline.commit.conflict_report:ConflictReport",
    "HoodooError": "timeline.errors:HoodooError",
    "Isolation": "timeline.rules.isolation:Isolation",
    "Reaction": "timeline.errors:Reaction",
    "ReadSet": "filegroups.reading.read_set:ReadSet",
    "SimpleBucketAssigner": "filegroups.keys.bucketing:SimpleBucketAssigner",
    "Snapshot": "timeline.snapshot:Snapshot",
    "Table": "hoodoo.table:Table",
    "TableSnapshot": "filegroups.table:TableSnapshot",
    "TableType": "timeline.model.commit_metadata:TableType",
    "WriteOperation": "timeline.model.commit_metadata:WriteOperation",
    "create_table": "hoodoo.catalog:create_table",
    "errors": "hoodoo.errors",
    "open_table": "hoodoo.catalog:open_table",
}


def __getattr__(name: str) -> object:
    path = _EXPORTS.get(name)
    if path is None and name.endswith("Error") and name in _error_names():
        path = f"timeline.errors:{name}"
    if path is None:
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}{_suggestion(name)}", name=name
        )
    found = globals()[name] = resolve_name(path)
    return found


def __dir__() -> list[str]:
    special = (name for name in globals() if name.startswith("__"))
    return sorted({*__all__, *_error_names(), *special})


def _error_names() -> list[str]:
    """Return the names of the error classes, each of which is an attribute, too."""
    names: list[str] = resolve_name("timeline.errors:__all__")
    return [name for name in names if name.endswith("Error")]


def _suggestion(name: str) -> str:
    if name.startswith("__"):
        return ""  # Python asks for such names by itself
    from difflib import get_close_matches

    near = get_close_matches(name, [*_EXPORTS, *_error_names()], 1)
    return f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(__all__)}"


def _refuse_shadowed_packages() -> None:
    """
    Refuse to start if Python finds a foreign module under the name of an own package.

    Raises:
        ImportError: A package is missing or foreign. The text names the found file and the fix.
    """
    folder = Path(__file__).resolve().parent.parent
    for name in ("timeline", "lockproviders", "filegroups", "tableservices"):
        spec = importlib.util.find_spec(name)
        origin = None if spec is None else spec.origin
        if origin is not None and Path(origin).resolve() == folder / name / "__init__.py":
            continue
        if spec is None:
            found = "no such module"
        else:
            found = origin or ", ".join(
                spec.submodule_search_locations or ("a module without file",)
            )
        raise ImportError(
            f"hoodoo needs its own package {name!r} in {folder}, but Python finds {found}. If that "
            "is your module, rename it, or remove its folder from PYTHONPATH and sys.path; if "
            "another distribution installed it, install hoodoo into an environment of its own; if "
            "nothing is found, install hoodoo again.",
            name=name,
            path=origin,
        )


_refuse_shadowed_packages()
