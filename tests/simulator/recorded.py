"""
A simulated run as a ``History`` for the history checker, from any run that has a journal.

Operations are transactions, their slots the order of commits; reads are full reads.
"""

from __future__ import annotations

from hoodoo.history_checker.history import History, HistoryRecorder
from tests.simulator.table_facts import ClientEventKind, ObservedTable

_ANSWERS = {ClientEventKind.OK: "ok", ClientEventKind.FAIL: "fail"}


def recorded_run(facts: ObservedTable) -> History:
    """The history of the clients of a simulated system; the run must not contain a restore."""
    run = HistoryRecorder()
    for slot in facts.slots:
        if slot.replaces:
            run.cleared = slot.number  # no client reports which rows an overwrite hid
        for operation in slot.operations:
            run.transaction(operation, position=slot.number)
    for event in facts.history:
        if event.kind is ClientEventKind.INVOKE:
            run.writes(event.operation, list(event.keys), deletes=event.deletes)
        elif event.kind is ClientEventKind.READ:
            run.transaction(event.operation, snapshot=event.snapshot, full=True)
            rows = (event.rows or {}).items()
            run.reads(event.operation, [(key, one) for key, seen in rows for one in seen])
        else:
            run.transaction(event.operation, answer=_ANSWERS.get(event.kind))
    return run.finish()
