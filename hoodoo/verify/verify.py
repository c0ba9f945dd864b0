"""Verify a whole table: timeline, commit log, batch ids, file slices and records."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from filegroups.table import open_reader
from hoodoo.configuration import Layers
from hoodoo.factory import compose_ports, limits_of, properties_of_table
from hoodoo.history_checker.anomalies import Anomaly
from hoodoo.history_checker.table_history import check_history
from hoodoo.services import warn_ignored_keys
from hoodoo.verify.hash_chain import HashChainCoverage, Witness, check_commit_log, verify_hash_chain
from hoodoo.verify.metadata_table import MAY_BE_CLEANED, check_metadata_table
from hoodoo.verify.records import check_records
from timeline.commit.apply import is_applied, may_overlap, newest_slots
from timeline.commit_log import slots_with_removed_file
from timeline.context import TableContext
from timeline.errors import CorruptTableError, InternalError, counted
from timeline.heartbeat import instants_with_expired_heartbeat
from timeline.model.commit_metadata import NO_PREVIOUS_COMMIT, TableType, WriteStat
from timeline.model.file_names import (
    HEARTBEATS,
    MARKERS,
    data_file_time,
    heartbeat_path,
    join,
    parse_base_file_name,
    parse_log_file_name,
    slot_path,
    timeline_path,
    truncation_point_path,
)
from timeline.model.instant import Action, Instant
from timeline.model.instant_time import InstantTime
from timeline.model.slot import Slot, SlotKind, digest_of
from timeline.partitions import list_partition_paths
from timeline.ports.ports import ObjectMissingError
from timeline.snapshot import ActiveTimeline, Snapshot
from timeline.truncation import read_truncation_point, truncated_up_to

# ---- Check the truncation points that hold batch ids: present and not edited (BATCH-2)


class _BatchReport(Protocol):
    def problem(self, kind: str, path: str, message: str) -> None:
        """Record a problem: the table is not ok."""


def check_batches(context: TableContext, report: _BatchReport) -> None:
    """
    Compare the earlier truncation points with their digests in the current one.

    Outside: 1 list and 1 get, and 1 get per earlier truncation point. They repeat after each
    truncation that happens meanwhile.

    Args:
        context: The table.
        report: Receives the findings.

    Raises:
        CorruptTableError: The current truncation point cannot be read.
    """
    storage = context.ports.storage
    while True:
        truncation_point = read_truncation_point(storage)
        found: list[tuple[str, str, str]] = []
        for one in truncation_point.earlier:
            path = truncation_point_path(one.number)
            try:
                differs = digest_of(storage.read(path)) != one.digest
            except ObjectMissingError:
                message = f"it has {counted(one.count, 'batch id')}, so writes with a batch id are rejected"
                found.append(("boundary_missing", path, message))
                continue
            if differs:
                message = (
                    "the present truncation point was not built from these bytes: it was edited"
                )
                found.append(("boundary_differs", path, message))
        if not found or truncated_up_to(storage) == truncation_point.number:
            break
    for each in found:
        report.problem(*each)


# ----------------------------------------------------------------
# Verification checks from the files of a table whether the table is correct.
#
# It is independent of the write path on purpose: it compares the timeline with the storage. It is
# safe while writers run, because it checks a change again before it reports a problem.
#
# It checks these rules:
# - The properties are valid, and requested and completion times are in order.
# - Each slot is applied with the bytes that it holds, and the hash chain is intact.
# - The truncation points that hold batch ids are present.
# - Each file of the newest snapshot exists, with its recorded size and row count.
# - No two versions of a file group have the same source, and none has a newer one (a lost update).
# - An instant names each data file, footers are complete, and each key is in a partition once.

_CHECKS = 3  # times; a running writer may finish between two of them
_PAUSE_MS = 300
#: Kinds of slots whose file another engine may delete without a slot.
_TAKEN_AWAY = frozenset({SlotKind.PLAN, SlotKind.SAVEPOINT})
#: The note on a slot without its file, by whether slot and file decide together (FOR-4, FOR-9).
_WAITING = {
    False: "committed, but its completed file is missing; the next writer or service creates it",
    True: "its outcome is not decided, because its file is missing; the next writer or service "
    "decides it",
}

_OLD_MARKERS = (
    "markers of an ended write; once its heartbeat has expired, the next clean deletes them: "
    "'hoodoo services run TABLE --service clean'"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem or a note; ``path`` is relative to the table, and ``kind`` is stable."""

    kind: str
    path: str
    message: str

    def as_document(self) -> dict[str, str]:
        """JSON-ready form."""
        return {"kind": self.kind, "path": self.path, "message": self.message}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The findings: with a problem the table is not ok; a note needs no action."""

    problems: tuple[Finding, ...]
    notes: tuple[Finding, ...] = ()
    instants: int = 0
    file_slices: int = 0
    rows: int = 0
    evidence: HashChainCoverage | None = None  # if slots have hash links

    @property
    def ok(self) -> bool:
        """Return whether there is no problem."""
        return not self.problems

    @property
    def summary(self) -> str:
        """Summarize the table in one line for people."""
        return (
            f"{counted(self.instants, 'instant')}, {counted(self.file_slices, 'file slice')}, "
            f"{counted(self.rows, 'row')}"
        )

    def as_document(self) -> dict[str, Any]:
        """Return the JSON document of the specification, with the notes."""
        return {
            "ok": self.ok,
            "problems": [each.as_document() for each in self.problems],
            "notes": [each.as_document() for each in self.notes],
            "instants": self.instants,
            "file_slices": self.file_slices,
            "rows": self.rows,
            "evidence": self.evidence and self.evidence.as_document(),
        }


def verify_at(
    address: str | os.PathLike[str],
    layers: Layers,
    *,
    history: bool = False,
    journals: Sequence[Path] = (),
    all_columns: bool = False,
    expect_head: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Verification:
    """
    Verify the table at an address; report damaged properties as a problem.

    With ``history`` also check the history of the table, with the ``journals`` of clients.
    ``expect_head`` is the head of the hash chain that an earlier verification returned.

    Raises:
        InvalidInputError: A journal cannot be read, or ``expect_head`` has another form.
        TableNotFoundError: There is no table.
        UnsupportedTableError: Its version or a feature is not handled by this release.
        SettingError: A property is wrong.
    """
    witness = None if expect_head is None else Witness.parse(expect_head)
    try:
        _, properties, settings = properties_of_table(address, layers)
        table = open_reader(compose_ports(address, properties), limits_of(settings, properties))
    except CorruptTableError as error:
        path = str(error.fields.get("path", ""))
        return Verification(problems=(Finding(kind=error.kind, path=path, message=error.message),))
    if layers.warns:
        warn_ignored_keys(properties, table.context.ports.events)
    try:
        found = verify(
            table.context,
            history=history,
            all_columns=all_columns,
            witness=witness,
            progress=progress,
        )
        if history and found.ok:  # the history of a damaged table proves nothing
            if progress:
                progress("history")
            found = replace(found, problems=_findings(check_history(table.context, journals)))
    finally:
        table.close()
    return found


def _findings(anomalies: list[Anomaly]) -> tuple[Finding, ...]:
    return tuple(
        Finding(kind=one.kind.value, path=one.item, message=one.message) for one in anomalies
    )


def verify(
    context: TableContext,
    *,
    history: bool = False,
    all_columns: bool = False,
    witness: Witness | None = None,
    progress: Callable[[str], None] | None = None,
) -> Verification:
    """
    Verify an opened table.

    Args:
        context: The table.
        history: Check the archived timeline too.
        all_columns: Decode every column of the newest rows, not only their keys.
        witness: A head of the hash chain that was noted earlier.
        progress: Receives the name of each check when it starts.

    Outside: lists of the timeline and of every partition; 1 get per completed instant and
    slot; and the reads of ``check_records``.
    """
    run = _Verification(context=context, report=progress or _ignore, witness=witness)
    try:
        run.everything(history=history, all_columns=all_columns)
    except CorruptTableError as error:
        # An unreadable file ends the checks that depend on it.
        run.problem(error.kind, str(error.fields.get("path", "")), error.message)
    return Verification(
        problems=tuple(run.problems),
        notes=tuple(run.notes),
        instants=run.instants,
        file_slices=run.file_slices,
        rows=run.rows,
        evidence=run.evidence,
    )


def _ignore(_: str) -> None:
    pass


@dataclass(kw_only=True)
class _Verification:
    """One verification; ``everything`` runs the checks in order."""

    context: TableContext
    report: Callable[[str], None]
    witness: Witness | None = None
    evidence: HashChainCoverage | None = None
    problems: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    damaged: set[InstantTime] = field(default_factory=set)  # commits without their completed file
    instants: int = 0
    file_slices: int = 0
    rows: int = 0

    def problem(self, kind: str, path: str, message: str) -> None:
        self.problems.append(Finding(kind=kind, path=path, message=message))

    def note(self, kind: str, path: str, message: str) -> None:
        self.notes.append(Finding(kind=kind, path=path, message=message))

    def everything(self, *, history: bool, all_columns: bool) -> None:
        self.report("timeline")
        snapshot = self.context.snapshot()
        self.instants = len(snapshot.active.instants)
        self._times(snapshot.active)
        self.report("commit slots")
        self._slots(snapshot.active)
        self.report("file versions")
        written = self._written(snapshot)
        logs = self._logs(snapshot)
        self._sources(written)
        self.report("files")
        sizes = self._listed()
        self._leftovers(snapshot, sizes)
        self._unannounced(snapshot, logs, sizes)
        self._needed(snapshot, written, logs, sizes)
        self.report("metadata table")
        found = list(check_metadata_table(self.context, snapshot, sizes))
        if any(kind in MAY_BE_CLEANED for kind, _, _ in found) and self._overtaken(snapshot):
            found = [one for one in found if one[0] not in MAY_BE_CLEANED]
        for problem in found:
            self.problem(*problem)
        self.report("records")
        recorded = {stat.path: stat for versions in written.values() for _, stat in versions}
        self.file_slices, self.rows = check_records(
            self.context, snapshot, recorded, self, all_columns=all_columns
        )
        if history:
            self.report("history")
            self._history(snapshot.active)

    # ---- time

    def _times(self, active: ActiveTimeline) -> None:
        requested: dict[InstantTime, Instant] = {}
        completed: dict[InstantTime, Instant] = {}
        for instant in active.instants:
            name = str(instant)
            if instant.action is not Action.SAVEPOINT:  # it has the time of its commit (trap 19)
                other = requested.setdefault(instant.requested_time, instant)
                if other is not instant:
                    self.problem("same_requested_time", name, f"two instants, the other: {other}")
            if instant.completion_time is None:
                continue
            old = instant.completion_time == instant.requested_time
            if instant.completion_time < instant.requested_time:
                self.problem("time_order", name, "it completed before it was requested")
            if instant.action is Action.SAVEPOINT or old:
                continue
            twin = completed.setdefault(instant.completion_time, instant)
            if twin is not instant:
                self.problem("same_completion_time", name, f"two instants, the other: {twin}")

    def _slots(self, active: ActiveTimeline) -> None:
        commit_log = self.context.commit_log
        try:
            slots = list(commit_log.newest_first())[::-1]
            check_commit_log(self.context, slots, active, self)
            check_batches(self.context, self)
        except (CorruptTableError, InternalError) as error:
            self.problem(error.kind, str(error.fields.get("path", "")), error.message)
            return
        own = [slot for slot in slots if not commit_log.is_of_another(slot)]  # SLOT-8
        for before, after in itertools.pairwise(own):
            if after.completion_time <= before.newest_time:
                self.problem(
                    "slot_order",
                    slot_path(after.number),
                    "its completion time does not exceed the times of the slot before it",
                )
        self._check_applied_slots(slots)
        self.evidence = verify_hash_chain(self.context, slots, active, self, witness=self.witness)

    def _check_applied_slots(self, slots: list[Slot]) -> None:
        taken = slots_with_removed_file(slots)
        newest = slots[-1] if slots else None
        for slot in slots:  # below the newest one: applied once, then deleted by another engine
            if slot.timeline_digest and slot.kind in _TAKEN_AWAY and slot is not newest:
                taken |= {slot.number}
        waiting = [one for one in slots if one.number not in taken]
        for check in range(_CHECKS):
            active = self.context.active()
            waiting = [
                slot
                for slot in waiting
                if not is_applied(slot, active, self.context.archived_timeline)
            ]
            if not waiting:
                break
            if check + 1 < _CHECKS:
                self.context.ports.clock.sleep_ms(_PAUSE_MS)
        newest_two = newest_slots(self.context, self.context.commit_log.known_head)
        for slot in waiting:
            if may_overlap(slot) and slot.number < newest_two[0].number:
                self.damaged.add(slot.requested_time)
                self.problem(
                    "completed_missing",
                    timeline_path(str(slot.file_name)),
                    "its slot decided this commit, but its completed file is missing, so readers "
                    f"miss its rows; run 'hoodoo explain TABLE {slot.requested_time} --resolve' to "
                    "create the file again",
                )
                continue
            self.note(
                "slot_unsettled", slot_path(slot.number), _WAITING[bool(slot.timeline_digest)]
            )
        for slot in slots:
            name = slot.file_name
            if name is None or not slot.body:
                continue
            try:
                data = self.context.ports.storage.read(timeline_path(name))
            except ObjectMissingError:
                continue
            if data != slot.body:
                self.problem(
                    "completed_differs",
                    timeline_path(name),
                    "its bytes differ from those of its slot",
                )

    # ---- versions of file groups

    def _written(
        self, snapshot: Snapshot
    ) -> dict[tuple[str, str], list[tuple[Instant, WriteStat]]]:
        """Return the base files by (partition path, file id), in order of completion time."""
        found: dict[tuple[str, str], list[tuple[Instant, WriteStat]]] = {}
        ordered = sorted(
            snapshot.active.completed_writes, key=lambda one: one.completion_time or ""
        )
        for instant in ordered:
            metadata = snapshot.commits.read(instant)
            for partition_path, stats in metadata.partition_to_write_stats.items():
                for stat in stats:
                    name = (stat.path or "").rpartition("/")[2]
                    if parse_base_file_name(name) is not None:
                        key = (partition_path, stat.file_id)
                        found.setdefault(key, []).append((instant, stat))
        return found

    def _logs(self, snapshot: Snapshot) -> list[tuple[Instant, str, WriteStat]]:
        """Return the log files that commits name, with instant and partition path."""
        return [
            (instant, partition_path, stat)
            for instant in snapshot.active.completed_writes
            for partition_path, stats in snapshot.commits.read(
                instant
            ).partition_to_write_stats.items()
            for stat in stats
            if parse_log_file_name((stat.path or "").rpartition("/")[2]) is not None
        ]

    def _sources(self, written: dict[tuple[str, str], list[tuple[Instant, WriteStat]]]) -> None:
        """Report versions of a file group with the same source, or with a newer one."""
        if self.context.config.table_type is not TableType.COPY_ON_WRITE:
            return
        for (partition_path, file_id), versions in written.items():
            seen: dict[str, Instant] = {}
            for instant, stat in versions:
                source = stat.prev_commit or NO_PREVIOUS_COMMIT
                if source != NO_PREVIOUS_COMMIT and source > instant.requested_time:
                    self.problem(
                        "lost_update",
                        join(partition_path, file_id),
                        f"{instant.requested_time} was computed from the newer {source}, and "
                        "readers see that one instead: its rows are lost",  # hole 23
                    )
                other = seen.setdefault(source, instant)
                if other is not instant:
                    self.problem(
                        "lost_update",
                        join(partition_path, file_id),
                        f"{instant.requested_time} and {other.requested_time} were both computed "
                        f"from {source}: rows of one of them are lost",
                    )

    # ---- files

    def _listed(self) -> dict[str, int]:
        storage = self.context.ports.storage
        return {
            join(partition_path, entry.name): entry.size_bytes
            for partition_path in list_partition_paths(storage)
            for entry in storage.list(partition_path)
            if not entry.is_folder
        }

    def _leftovers(self, snapshot: Snapshot, sizes: dict[str, int]) -> None:
        storage = self.context.ports.storage
        now = self.context.active()  # with instants that began since the snapshot
        pending = {one.requested_time for one in (*snapshot.active.pending, *now.pending)}
        done = {one.requested_time for one in now.completed_writes}
        dead = set(
            instants_with_expired_heartbeat(storage, tuple(pending), self.context.limits.heartbeat)
        )
        exact = self.context.config.timeline_layout_version == 2  # older archives have holes
        archived = self.context.archived_timeline.times()
        for path in sizes:
            time = data_file_time(path.rpartition("/")[2])
            if time is None or time in done or time in self.damaged:
                continue
            counts = now.is_archived(time, lambda: archived)
            if counts and not (exact and archived.rules_out(time)):
                continue
            if time in dead:
                self.note("leftover", path, f"of the dead write {time}; the next clean removes it")
            elif time not in pending and storage.stat(path) is not None:
                self.problem("unknown_instant", path, f"no instant on the timeline names {time}")
        for entry in storage.list(MARKERS):
            if entry.is_folder and entry.name not in pending:
                self.note("leftover", f"{MARKERS}/{entry.name}", _OLD_MARKERS)
        for entry in storage.list(HEARTBEATS):
            if not entry.is_folder and entry.name in dead:
                self.note("leftover", heartbeat_path(entry.name), "heartbeat of a dead write")

    def _unannounced(
        self,
        snapshot: Snapshot,
        logs: list[tuple[Instant, str, WriteStat]],
        sizes: dict[str, int],
    ) -> None:
        """
        Report files with the time of a completed instant that are missing in its metadata.

        Readers see such a file, except one that a clustering made of a file group which a writer
        changed meanwhile. The clustering commits that group as replaced (CL-1), and a clean
        deletes the remaining files.
        """
        old = self.context.config.may_have_old_logs
        old_logs = {stat.path for _, _, stat in logs} if old else set()
        by_time: dict[InstantTime, set[str]] = {}
        for path in sizes.keys() - old_logs:
            if (time := data_file_time(path.rpartition("/")[2])) is not None:
                by_time.setdefault(time, set()).add(path)
        for instant in snapshot.active.completed_writes:
            found = by_time.get(instant.requested_time)
            if found:
                metadata = snapshot.commits.read(instant)
                hidden = set(metadata.replaced_file_groups())
                for path in sorted(found - set(metadata.written_paths())):
                    folder, _, name = path.rpartition("/")
                    base, log = parse_base_file_name(name), parse_log_file_name(name)
                    if base is not None and (folder, base.file_id) in hidden:
                        self.note("leftover", path, f"rejected with {instant}; a clean removes it")
                    elif base is not None or (log and not log.is_cdc):
                        self.problem(
                            "unannounced_file",
                            path,
                            f"{instant} does not name it, and readers see it",
                        )

    def _needed(
        self,
        snapshot: Snapshot,
        written: dict[tuple[str, str], list[tuple[Instant, WriteStat]]],
        logs: list[tuple[Instant, str, WriteStat]],
        sizes: dict[str, int],
    ) -> None:
        replaced = {(each.partition_path, each.file_id) for each in snapshot.replaced}
        needed = [versions[-1][1] for key, versions in written.items() if key not in replaced]
        for instant, partition_path, stat in logs:
            key = (partition_path, stat.file_id)
            newest = max((one.requested_time for one, _ in written.get(key, ())), default="")
            # A log applies to a base file that was requested before the log completed.
            if key not in replaced and (instant.completion_time or "") >= newest:
                needed.append(stat)
        for stat in needed:
            path = stat.path or ""
            size = sizes.get(path)
            if size is None:
                if self._overtaken(snapshot):
                    return  # a newer commit replaced it and a clean deleted it
                self.problem("missing_file", path, "the newest state needs it, and it is missing")
            elif stat.file_size_in_bytes and size != stat.file_size_in_bytes:
                self.problem(
                    "file_size", path, f"{size} bytes instead of {stat.file_size_in_bytes}"
                )

    def _overtaken(self, snapshot: Snapshot) -> bool:
        return self.context.active().newest_decided_time != snapshot.active.newest_decided_time

    # ---- history

    def _history(self, active: ActiveTimeline) -> None:
        present = {(one.action.value, one.requested_time) for one in active.instants}
        for row in self.context.archived_timeline.instants(times_only=False):
            name = f"{row.requested_time} {row.action} (archived)"
            self.instants += (row.action, row.requested_time) not in present
            if row.completion_time is not None and row.completion_time < row.requested_time:
                self.problem("time_order", name, "it completed before it was requested")
