"""Slots of commits, as tests of the chain put them into a storage."""

from __future__ import annotations

from typing import Any

from timeline.model.instant import Action
from timeline.model.slot import Slot, SlotKind, SlotOwner


def commit_slot(number: int, table_id: str = "t", **fields: Any) -> Slot:
    """The slot of a commit whose times follow from its number."""
    usual: dict[str, Any] = {"kind": SlotKind.COMMIT, "nonce": "n"}
    return Slot(
        number=number,
        table_id=table_id,
        action=Action.COMMIT,
        requested_time=f"2026010203040{number:04d}",
        completion_time=f"2026010203050{number:04d}",
        base=number - 1,
        owner=SlotOwner(host="h", pid=1, writer_id="w"),
        **usual | fields,
    )
