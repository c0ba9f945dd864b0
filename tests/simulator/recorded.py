"""
A simulated run in the form that the history checker judges, for every run that has a journal.

Operations are transactions, their slots the order of commits; what readers saw are full reads.
"""

from __future__ import annotations

from hoodoo.history_checker.history import History, HistoryRecorder
from tests.simulator.table_facts import ClientEventKind, ObservedTable

_ANSWERS = {ClientEventKind.OK: "ok", ClientEventKind.FAIL: "fail"}


def recorded_run(facts: ObservedTable) -> History:
    """What the clients of a simulated world did and saw; nothing may have been restored."""
    run = HistoryRecorder()
    for slot in facts.slots:
        if slot.replaces:
            run.cleared = slot.number  # which rows an overwrite hid no client tells
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
