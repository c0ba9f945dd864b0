"""
Observations of a table and its clients, as plain values for the checkers.

The checkers know no engine. An adapter reads a table (simulated or real) into one
``ObservedTable``, or ``tests.simulator.table_builder`` makes one by hand. Paths of data
files are table-relative.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class ClientEventKind(Enum):
    """What a client reports about one of its operations (``info`` = outcome unknown)."""

    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"
    INFO = "info"
    READ = "read"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientEvent:
    """
    One entry of the clients' history.

    ``keys`` and ``deletes`` belong to ``invoke``; ``snapshot`` (number of the newest slot
    it holds) and ``rows`` (record key to operation ids) belong to ``read``.
    """

    position: int  # order over all clients
    actor: str
    kind: ClientEventKind
    operation: str  # unique id; of a read: the reader's name for it
    keys: tuple[str, ...] = ()
    deletes: bool = False  # the operation deletes its keys
    snapshot: int | None = None
    rows: Mapping[str, tuple[str, ...]] | None = None


class ObservedSlotKind(Enum):
    """The decision of a slot (SLOT-4); other kinds are ``NOOP`` to the checkers."""

    COMMIT = "commit"
    PLAN = "plan"
    ABORT = "abort"
    CLEAN = "clean"
    NOOP = "noop"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatFact:
    """One file that a commit says it wrote."""

    partition_path: str
    file_id: str
    path: str
    size_bytes: int
    is_base: bool = True
    previous_base: str | None = None  # path of the base file it was merged from
    repeats: bool = False  # a log of nothing but rows that older logs have (log compaction)
    change_logs: tuple[str, ...] = ()  # paths of the change logs of this file

    @property
    def file_group(self) -> tuple[str, str]:
        """Identity of its file group."""
        return (self.partition_path, self.file_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFact:
    """
    One slot of the commit log.

    ``requested_time`` is the instant's (abort: the target's). ``removes`` are the files a
    clean may delete. ``operations`` are the client operations that this slot commits.
    """

    number: int
    kind: ObservedSlotKind
    action: str
    requested_time: str
    completion_time: str | None = None
    own_requested_time: str | None = None  # abort: of the rollback instant itself
    stats: tuple[StatFact, ...] = ()
    replaces: frozenset[tuple[str, str]] = frozenset()
    removes: frozenset[str] = frozenset()
    operations: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class InstantFact:
    """One instant on the active timeline, in its furthest state."""

    action: str  # completed: the action of the completed file
    requested_time: str
    state: str  # requested, inflight, completed
    completion_time: str | None = None
    stats: tuple[StatFact, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionFact:
    """
    One data file that a process deleted.

    ``head`` is the number of the newest slot at that moment. ``requested_time`` is the one in
    the file's name. ``owner`` is the actor that wrote it.
    """

    path: str
    actor: str
    head: int
    requested_time: str
    owner: str
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedTable:
    """
    The input of all checkers.

    ``visible`` (files a reader would read) and ``rows`` (record key to operation ids) are
    keyed by the number of the newest slot in the snapshot. The adapter gives the snapshots
    it evaluated, at least the head's at the end of a run. ``floor`` is the oldest slot
    whose snapshot must still be readable.
    """

    slots: tuple[SlotFact, ...] = ()
    instants: tuple[InstantFact, ...] = ()
    archived: frozenset[str] = frozenset()  # requested times
    files: Mapping[str, int] = field(default_factory=dict)  # data files: path to size
    deletions: tuple[DeletionFact, ...] = ()
    history: tuple[ClientEvent, ...] = ()
    visible: Mapping[int, frozenset[str]] = field(default_factory=dict)
    rows: Mapping[int, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    floor: int = 1
    needed: tuple[tuple[int, StatFact], ...] = ()  # ``needed_files``, where they are known

    @property
    def head(self) -> int:
        """Number of the newest slot, 0 without any."""
        return self.slots[-1].number if self.slots else 0
