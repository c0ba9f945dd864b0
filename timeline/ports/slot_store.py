"""
The slot store port: where commit slots are decided when the table's storage cannot (SLOT-6).

The least that decides a publication: small objects, each created by one actor only. Every
storage with an atomic create-if-absent fulfils it (the methods mean the same), and so does a
table of a database with a primary key. The contract is tested by
``timeline.testing.slot_suite``.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

from timeline.errors import UnsafeSetupError

__all__ = ["SlotNames", "SlotStore", "slots_lost"]

SlotNames: TypeAlias = list[str]


class SlotStore(Protocol):
    """
    Small objects under paths with forward slashes; what is read was created whole.

    Every method may raise ``StorageUnavailableError`` (no answer; nothing was done, unless the
    method says otherwise) and ``UnsafeSetupError`` (waiting does not help).
    """

    def create(self, path: str, data: bytes) -> None:
        """
        Create the object unless it exists; on return it survives a power cut.

        Raises:
            ObjectExistsError: The name is taken.
            AmbiguousWriteError: The answer was lost (UNK-1).
        """

    def read(self, path: str) -> bytes:
        """Whole content, also when it was created a moment ago. Raises: ``ObjectMissingError``."""

    def names(self, folder: str) -> SlotNames:
        """Last segments of the objects in a folder, sorted; an unknown folder is empty."""

    def delete(self, path: str) -> None:
        """Remove the object; absent is no error. Its name is free afterwards."""

    def close(self) -> None:
        """Give up connections; a later call makes new ones."""


def slots_lost(where: str) -> UnsafeSetupError:
    """What everybody is told of a slot store that does not know any more what it decided."""
    return UnsafeSetupError(
        "the slot store has lost this table, so nobody knows which slots are taken; "
        f"restore it before anybody writes: {where}",
        kind="slots_lost",
        slots=where,
    )
