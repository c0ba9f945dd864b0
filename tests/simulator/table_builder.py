"""
Build an ``ObservedTable`` by hand: a correct short history, in which a test breaks one thing.

Times are drawn like the engine draws them, each above all before, so a table that only
uses the builder's verbs keeps every invariant; ``facts`` takes replacements for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.simulator.table_facts import (
    ClientEvent,
    ClientEventKind,
    DeletionFact,
    InstantFact,
    ObservedSlotKind,
    ObservedTable,
    SlotFact,
    StatFact,
)


class TableBuilder:
    """A copy-on-write table of one partition that grows by commits, aborts and cleans."""

    def __init__(self) -> None:
        self._slots: list[SlotFact] = []
        self._instants: list[InstantFact] = []
        self._files: dict[str, int] = {}
        self._deletions: list[DeletionFact] = []
        self._history: list[ClientEvent] = []
        self._rows: dict[int, dict[str, tuple[str, ...]]] = {0: {}}
        self._newest: dict[str, StatFact] = {}
        self._time = 20_260_101_000_000_000

    def next_time(self) -> str:
        """The next instant time, 17 digits."""
        self._time += 1
        return str(self._time)

    def commit(self, operation: str, *keys: str, file_id: str = "f1", actor: str = "a") -> SlotFact:
        """One client's operation that writes its keys into one file group and is answered ok."""
        requested, completed = self.next_time(), self.next_time()
        before = self._newest.get(file_id)
        stat = StatFact(
            partition_path="",
            file_id=file_id,
            path=f"{file_id}_0-0-0_{requested}.parquet",
            size_bytes=100 + len(self._slots),
            previous_base=None if before is None else before.path,
        )
        self._newest[file_id] = stat
        self._files[stat.path] = stat.size_bytes
        slot = SlotFact(
            number=len(self._slots) + 1,
            kind=ObservedSlotKind.COMMIT,
            action="commit",
            requested_time=requested,
            completion_time=completed,
            stats=(stat,),
            operations=frozenset({operation}),
        )
        self._take(slot, dict.fromkeys(keys, (operation,)))
        self._instants.append(
            InstantFact(
                action="commit",
                requested_time=requested,
                state="completed",
                completion_time=completed,
                stats=(stat,),
            )
        )
        self.say(ClientEventKind.INVOKE, operation, actor=actor, keys=keys)
        self.say(ClientEventKind.OK, operation, actor=actor)
        return slot

    def abort(self, target: str) -> SlotFact:
        """A rollback of the pending instant with this requested time."""
        requested, completed = self.next_time(), self.next_time()
        slot = SlotFact(
            number=len(self._slots) + 1,
            kind=ObservedSlotKind.ABORT,
            action="rollback",
            requested_time=target,
            completion_time=completed,
            own_requested_time=requested,
        )
        self._take(slot, {})
        self._instants.append(
            InstantFact(
                action="rollback",
                requested_time=requested,
                state="completed",
                completion_time=completed,
            )
        )
        return slot

    def clean(self, *paths: str) -> SlotFact:
        """A clean that may delete these files, and does."""
        requested, completed = self.next_time(), self.next_time()
        slot = SlotFact(
            number=len(self._slots) + 1,
            kind=ObservedSlotKind.CLEAN,
            action="clean",
            requested_time=requested,
            completion_time=completed,
            removes=frozenset(paths),
        )
        self._take(slot, {})
        self._instants.append(
            InstantFact(
                action="clean",
                requested_time=requested,
                state="completed",
                completion_time=completed,
            )
        )
        for path in paths:
            self.delete(path, actor="cleaner", why="clean")
        return slot

    def delete(self, path: str, *, actor: str, owner: str = "a", why: str = "") -> None:
        """A data file is gone, at the present head."""
        self._files.pop(path, None)
        self._deletions.append(
            DeletionFact(
                path=path,
                actor=actor,
                head=len(self._slots),
                requested_time=path.rpartition("_")[2].removesuffix(".parquet"),
                owner=owner,
                why=why,
            )
        )

    def say(
        self,
        kind: ClientEventKind,
        operation: str,
        *,
        actor: str = "a",
        keys: tuple[str, ...] = (),
        deletes: bool = False,
        snapshot: int | None = None,
        rows: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        """An event in the clients' history."""
        self._history.append(
            ClientEvent(
                position=len(self._history),
                actor=actor,
                kind=kind,
                operation=operation,
                keys=keys,
                deletes=deletes,
                snapshot=snapshot,
                rows=rows,
            )
        )

    def facts(self, **replacements: Any) -> ObservedTable:
        """The table so far; ``replacements`` overrides fields of ``ObservedTable``."""
        facts = ObservedTable(
            slots=tuple(self._slots),
            instants=tuple(self._instants),
            files=dict(self._files),
            deletions=tuple(self._deletions),
            history=tuple(self._history),
            rows={number: dict(rows) for number, rows in self._rows.items()},
        )
        return replace(facts, **replacements)

    def _take(self, slot: SlotFact, rows: Mapping[str, tuple[str, ...]]) -> None:
        self._slots.append(slot)
        self._rows[slot.number] = {**self._rows[slot.number - 1], **rows}
