"""The doctor tells a lock that works from one that does not."""

from __future__ import annotations

from lockproviders.doctor import examine
from lockproviders.inprocess import InProcessClient, ProcessLocks


def test_healthy_lock_passes_every_check(machine) -> None:
    locks = ProcessLocks()
    holder, rival = (
        machine.lock(InProcessClient("t", host="here", locks=locks), deadline_ms=100)
        for _ in range(2)
    )
    document = examine(holder, rival, clock=machine.clock).as_document()
    assert document["provider"] == "plain"
    assert document["ok"] is True
    assert [check["name"] for check in document["checks"]] == [
        "acquire",
        "second_refused",
        "still_held",
        "release",
        "hand_over",
        "tokens_grow",
    ]
    assert document["checks"][1]["seconds"] == 0.1


def test_lock_that_excludes_nobody_is_found_out(machine) -> None:
    holder, rival = (
        machine.lock(InProcessClient("t", host="here", locks=ProcessLocks())) for _ in range(2)
    )
    examination = examine(holder, rival, clock=machine.clock)
    assert not examination.ok
    assert [check.name for check in examination.checks if not check.ok] == ["second_refused"]


def test_lock_that_cannot_be_had_ends_the_examination(machine) -> None:
    client = machine.client()
    client.free = False
    examination = examine(machine.lock(client), machine.lock(client), clock=machine.clock)
    assert [(check.name, check.ok) for check in examination.checks] == [("acquire", False)]
