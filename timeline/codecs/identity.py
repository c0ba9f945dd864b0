"""
A table's identity <-> bytes: who the table is and what decides its commit slots (F27, SLOT-6).

One small file per table, created once and never changed. An address is no identity, since a
table can be dropped and another made in its place; and writers that take slots in different
places would exclude nobody, so the place is a fact of the table.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from timeline.errors import CorruptTableError
from timeline.places import TABLE_FACTS

__all__ = ["TableFacts", "decode_facts", "encode_facts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """What never changes about a table."""

    table_id: str
    slots: str  # as ``StorageCapabilities.slots``


def encode_facts(facts: TableFacts) -> bytes:
    """The file's bytes."""
    return json.dumps({"id": facts.table_id, "slots": facts.slots}).encode()


def decode_facts(data: bytes) -> TableFacts:
    """
    Read the file.

    Raises:
        CorruptTableError: It is damaged.
    """
    try:
        document = json.loads(data)
        return TableFacts(table_id=str(document["id"]), slots=str(document["slots"]))
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise CorruptTableError(
            f"the table's identity cannot be read, bring the file back from a backup: {TABLE_FACTS}",
            path=TABLE_FACTS,
        ) from error
