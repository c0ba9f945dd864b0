"""The in-process lock excludes threads of one process, and claims no more."""

from __future__ import annotations

import os

from lockproviders.inprocess import InProcessClient, ProcessLocks


def test_tables_have_locks_of_their_own() -> None:
    locks = ProcessLocks()
    one = InProcessClient("a", host="here", locks=locks)
    other = InProcessClient("b", host="here", locks=locks)
    holdings = [one.try_acquire("x"), other.try_acquire("y")]
    assert None not in holdings


def test_identity_differs_between_processes_because_the_lock_does() -> None:
    client = InProcessClient("t", host="here", locks=ProcessLocks())
    assert client.identity == f"in_process:here:{os.getpid()}:t"


def test_an_unreferenced_lease_frees_the_lock() -> None:
    client = InProcessClient("t", host="here", locks=ProcessLocks())
    holding = client.try_acquire("x")
    assert client.try_acquire("y") is None
    del holding
    assert client.try_acquire("y") is not None


def test_simulated_processes_with_their_own_locks_do_not_exclude_each_other() -> None:
    one = InProcessClient("t", host="here", locks=ProcessLocks())
    other = InProcessClient("t", host="here", locks=ProcessLocks())
    holdings = [one.try_acquire("x"), other.try_acquire("y")]
    assert None not in holdings


def test_forked_child_starts_with_free_locks_and_leaves_the_parents_alone() -> None:
    locks = ProcessLocks()
    client = InProcessClient("t", host="here", locks=locks)
    holding = client.try_acquire("x")
    child = os.fork()
    if child == 0:
        held = holding.is_held()
        mine = client.try_acquire("mine")
        fresh = InProcessClient("t", host="here", locks=locks)
        refused = fresh.try_acquire("second") is None
        os._exit(0 if not held and mine is not None and refused else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert holding.is_held()
