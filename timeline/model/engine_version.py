"""
The engine version, and the least one that may apply each thing a process writes (REL-1 to REL-6).

A release that writes a new kind of thing raises ``ENGINE_VERSION`` by one and enters the new
number below for that thing only. Everything else keeps its number, so releases run beside each
other until the new thing is written. A process of a lesser version then refuses (REL-2).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from timeline.errors import CorruptTableError, UnsupportedTableError
from timeline.model.instant import Action
from timeline.model.slot import Slot, SlotKind

#: What names no version was written by this one (REL-1).
FIRST_VERSION: Final = 1

#: The version of this process: it applies whatever needs at most this one.
ENGINE_VERSION: int = 1

#: By kind of slot. The content of one slot may need more: ``Slot.least_engine_version``.
LEAST_FOR_SLOT: Mapping[SlotKind, int] = {
    SlotKind.COMMIT: 1,
    SlotKind.PLAN: 1,
    SlotKind.ABORT: 1,
    SlotKind.CANCEL: 1,
    SlotKind.CLEAN: 1,
    SlotKind.TRUNCATE: 1,
    SlotKind.SAVEPOINT: 1,
    SlotKind.UNSAVEPOINT: 1,
    SlotKind.RESTORE: 1,
    SlotKind.VOID: 1,
    SlotKind.NOOP: 1,
}

#: By action whose requested file is a plan. Hudi's plans of rollbacks and restores have no place
#: for it; they are in a slot, which names it.
LEAST_FOR_PLAN: Mapping[Action, int] = {
    Action.COMPACTION: 1,
    Action.LOGCOMPACTION: 1,
    Action.CLUSTERING: 1,
    Action.CLEAN: 1,
}

#: Of each writer that works beside this process.
LEAST_FOR_WRITER: int = 1

#: In the extra metadata of a plan: the least version that may execute it.
LEAST_VERSION_KEY: Final = "hoodoo.least_engine_version"


def least_version_of_slot(slot: Slot) -> int:
    """
    Return the least engine version that may apply a slot.

    A plan's slot needs no less than its plan: a writer that meets the plan refuses as well, and a
    release that does not know ``LEAST_VERSION_KEY`` knows the slot's version (SLOT-3).
    """
    of_plan = LEAST_FOR_PLAN.get(slot.action, 1) if slot.kind is SlotKind.PLAN else 1
    return max(slot.least_engine_version, LEAST_FOR_SLOT[slot.kind], of_plan)


def plan_version_entry(action: Action) -> dict[str, str]:
    """Return the entry of a plan's extra metadata that names its least version (REL-3)."""
    return {LEAST_VERSION_KEY: str(LEAST_FOR_PLAN[action])}


def writer_versions() -> dict[str, int]:
    """Return what the registry entry of this process says about versions (REL-4)."""
    return {"engine_version": ENGINE_VERSION, "least_engine_version": LEAST_FOR_WRITER}


def refuse_newer_plan(extra_metadata: Mapping[str, str] | None, *, path: str) -> None:
    """
    Refuse a plan that this process must not execute or reason about (REL-3).

    Raises:
        UnsupportedTableError: It needs a greater version (``newer_engine``).
        CorruptTableError: The named version is no number.
    """
    least = (extra_metadata or {}).get(LEAST_VERSION_KEY, str(FIRST_VERSION))
    if not (least.isascii() and least.isdecimal()):
        raise CorruptTableError(
            f"a plan is damaged: its {LEAST_VERSION_KEY} is no number: {least[:40]!r} in {path}",
            path=path,
        )
    refuse_newer(int(least), "the plan of a table service", path=path)


def refuse_newer(least: int, what: str, **fields: Any) -> None:
    """
    Refuse a thing on the table that needs a greater version than this process has (REL-2).

    Args:
        least: The least engine version that may apply it.
        what: The thing, in words.
        **fields: More data of the error; ``path`` is shown.

    Raises:
        UnsupportedTableError: This process is too old (``newer_engine``).
    """
    if least > ENGINE_VERSION:
        raise _newer_engine(least, what, **fields)


def unknown_kind_error(what: str, **fields: Any) -> UnsupportedTableError:
    """Return the error for a thing of a kind that only a later version can know (SLOT-3)."""
    return _newer_engine(ENGINE_VERSION + 1, what, **fields)


def _newer_engine(least: int, what: str, **fields: Any) -> UnsupportedTableError:
    path = f": {fields['path']}" if fields.get("path") else ""
    return UnsupportedTableError(
        f"a newer release works on this table: {what} needs engine version {least}, and this "
        f"process has engine version {ENGINE_VERSION}. Upgrade hoodoo in this process, then "
        f"retry{path}",
        kind="newer_engine",
        engine_version=ENGINE_VERSION,
        least_engine_version=least,
        **fields,
    )
