"""
Mechanisms for high-latency stores, each with a way to switch it off.

The product has no such switch: each entry replaces a function of the engine by the plain way to do the
same. ``without`` does it for a block. The benchmarks of this folder and ``bench.py --without`` use it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

from filegroups.writing import pending_commit, retry, write
from lockproviders.storage_based.client import StorageClient
from timeline import context
from timeline.commit import begin, commit_lock, object_store, waiting_line
from timeline.commit.object_store import ObjectStoreCommit
from timeline.commit.protocol import CommitProtocol
from timeline.commit_log import CommitLog
from timeline.context import TableContext
from timeline.ports.ports import Ports
from timeline.storage.object_store import ObjectStorage

Swap = tuple[Any, Any, Any]  # an owner, one of its members, its replacement


@contextlib.contextmanager
def without(names: Collection[str]) -> Iterator[None]:
    """Switch mechanisms off in this block. Raises: ``KeyError`` for an unknown name."""
    with contextlib.ExitStack() as stack:
        for wanted in names:
            for owner, member, made in MECHANISMS[wanted]():
                known = member.fget if isinstance(member, property) else member
                name = known if isinstance(known, str) else known.__name__
                stack.enter_context(patch.object(owner, name, made))
        yield


def _always(answer: object) -> Callable[..., Any]:
    return lambda *_, **__: answer


def _property(answer: object) -> property:
    return property(lambda _: answer)


# ---- The plain ways


def _one_after_the_other(_: Ports, *calls: Callable[[], Any]) -> tuple[Any, ...]:
    return tuple(call() for call in calls)


def _log_then_timeline(self: TableContext) -> Any:
    head, active = self.commit_log.head(), self.active()
    self._assert_same_table(head, active)
    if self.low_water_mark.entry is None:
        self.commit_log.keep_newest(context._SLOTS_KEPT)
    return head, active


def _log_then_timeline_with(self: TableContext, beside: Any) -> Any:
    return *self.refresh(), beside


def _log_then_timeline_in_line(table: TableContext, *, asks_config: bool = True) -> Any:
    return commit_lock.read_table(table, asks_config=asks_config)


def _slot_after_slot(self: CommitLog, seen: Any, known: int) -> int:
    head = known
    while self._present(range(head + 1, head + 2)):
        head += 1
    self._at_once = max(head - known + 1, (self._at_once + 1) // 2)  # it shows a busy table
    return head


@contextlib.contextmanager
def _read_nothing(_: TableContext) -> Iterator[Callable[[], None]]:
    yield lambda: None


@contextlib.contextmanager
def _lock_then_refresh(self: ObjectStoreCommit, before: Any) -> Iterator[Any]:
    table = self.context
    sharing = (
        object_store.LockSharing.START
        if table.commit_log.is_contended
        else object_store.LockSharing.JOIN
    )
    with object_store.follow_commit_log(table) as ended:
        lease = table.ports.lock.acquire_while(self._is_hopeful, self.purpose, sharing)
        ended()
    if lease is not None and not (lease.is_shared or self._is_hopeful()):
        lease.release()
        lease = None
    if lease is None:
        self._give_up_lock()
        yield None
        return
    with lease:
        self._read = before if lease.is_shared else None
        yield lease


def _apply_then_release(self: ObjectStoreCommit, section: Any, slot: Any) -> str:
    if slot.kind not in object_store.APPLIED_BY_A_FILE:
        return CommitProtocol._apply_own(self, section, slot)
    object_store.apply(self.context, slot)
    return ""


_apply_earlier = ObjectStoreCommit._apply_earlier


def _apply_before_slot(self: ObjectStoreCommit, read: Any, lease: Any) -> Any:
    section = _apply_earlier(self, read, lease)
    self._apply_deferred(section)
    self._revert_deferred(section)
    return replace(section, deferred_slot=None)


def _list_after_apply(self: ObjectStoreCommit, read: Any, lease: Any) -> Any:
    section = _apply_earlier(self, read, lease)
    return replace(section, timeline=self.context.active())


def _forget_reads(self: ObjectStoreCommit, _section: Any) -> None:
    self._read = None


def _open_again(self: ObjectStorage, path: str) -> Any:
    return self.open_input(path)


def _inflight_file_only(
    table: TableContext, begun: Any, profile: Any, parts: Any, *beside: Any
) -> Any:
    table.ports.concurrently(partial(begin.make_inflight, table, begun, profile), *beside)
    return [tuple(tasks) for _, tasks in parts]


def _announce_no_rebase(*_: Any, **__: Any) -> Any:
    return retry.AnnouncedRebase()


def _from_snapshot(work: Any, tries: Any) -> Any:
    return write._attempt(work, tries, work.context.snapshot())


# ---- The mechanisms

#: By name; each returns the functions to replace.
MECHANISMS: Mapping[str, Callable[[], list[Swap]]] = {
    # -- requests and caches
    "parallel-requests": lambda: [(Ports, Ports.concurrently, _one_after_the_other)],
    "parallel-refresh": lambda: [
        (TableContext, TableContext.refresh, _log_then_timeline),
        (TableContext, TableContext.refresh_with, _log_then_timeline_with),
    ],
    "refresh-at-once": lambda: [
        (object_store, object_store.refresh_at_once, _log_then_timeline_in_line),
        (waiting_line, object_store.refresh_at_once, _log_then_timeline_in_line),
    ],
    "parallel-slot-reads": lambda: [
        (CommitLog, CommitLog._proven, _slot_after_slot),
        (CommitLog, CommitLog._read_ahead, _always(None)),
    ],
    "parallel-announcement": lambda: [
        (pending_commit, pending_commit.announce_tasks, _inflight_file_only)
    ],
    "cached-snapshot": lambda: [
        (TableContext, TableContext.cached_snapshot_age_ms, _property(context.GLANCE_MS))
    ],
    "cached-files": lambda: [(ObjectStorage, ObjectStorage.open_kept, _open_again)],
    # -- the lock
    "shared-lock": lambda: [(StorageClient, StorageClient.shares, _property(False))],
    "lock-during-refresh": lambda: [
        (ObjectStoreCommit, ObjectStoreCommit._lock_and_state, _lock_then_refresh)
    ],
    "unlock-during-apply": lambda: [
        (ObjectStoreCommit, ObjectStoreCommit._apply_own, _apply_then_release)
    ],
    "read-while-waiting": lambda: [
        (commit_lock, commit_lock.follow_commit_log, _read_nothing),
        (object_store, commit_lock.follow_commit_log, _read_nothing),
    ],
    "leave-lock-queue": lambda: [(ObjectStoreCommit, ObjectStoreCommit._is_hopeful, _always(True))],
    "sharers-retry-first": lambda: [(write, "_FIRST_WITHOUT", 0)],
    "lock-memory": lambda: [(StorageClient, StorageClient._take_left, _always(None))],
    "skip-early-validation": lambda: [
        (ObjectStoreCommit, ObjectStoreCommit.validates_first, _always(True))
    ],
    # -- between two commits
    "slot-during-apply": lambda: [
        (ObjectStoreCommit, ObjectStoreCommit._apply_earlier, _apply_before_slot)
    ],
    "known-names-after-apply": lambda: [
        (ObjectStoreCommit, ObjectStoreCommit._apply_earlier, _list_after_apply)
    ],
    "read-after-lost-slot": lambda: [
        (ObjectStoreCommit, ObjectStoreCommit._read_after_loss, _forget_reads)
    ],
    "least-time": lambda: [(CommitProtocol, CommitProtocol.least_time, _always(""))],
    "order-of-writers": lambda: [
        (ObjectStoreCommit, ObjectStoreCommit._wait_before_slot, _always(False))
    ],
    # -- writers of the same file groups
    "waiting-line": lambda: [
        (ObjectStoreCommit, ObjectStoreCommit.must_wait_in_line, _always(False))
    ],
    "line-before-first-file": lambda: [(write, write._wait_in_line, _always(None))],
    "line-reads-files": lambda: [
        (waiting_line._LineWait, waiting_line._LineWait._reads_ahead, _always([]))
    ],
    "line-joins-lock": lambda: [
        (waiting_line._LineWait, waiting_line._LineWait._join, _always(None))
    ],
    "line-keeps-state": lambda: [
        (waiting_line.WaitResult, waiting_line.WaitResult.timeline_state, _always(None))
    ],
    "line-expects-slots": lambda: [(CommitLog, CommitLog.prefetch, _always(None))],
    "announce-rebase": lambda: [(write, write.announce_rebase, _announce_no_rebase)],
    "cached-snapshot-of-retry": lambda: [(write, write._from_start, _from_snapshot)],
    "retry-under-lock": lambda: [(write.RetryState, write.RetryState.keep_lock_ms, _always(None))],
}
