"""
Count the conflicts between the writers of a table, with their cost and advice.

Each commit records the rejections of its earlier attempts. A single conflict needs no action; many
of one kind between the same writers need a change of settings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hoodoo.inspect.explain import rejected_writes_of
from hoodoo.inspect.instants import InstantSummary, list_instants
from timeline.context import TableContext
from timeline.errors import counted
from timeline.model.instant_time import InstantTime

_PLACES_SHOWN_MAX = 3
_REJECTED_SHOWN_MAX = 10

#: Kind of rejection -> advice to avoid it if it is frequent.
_ADVICE: Mapping[str, str] = {
    "write_conflict": (
        "writers change rows of one file group: give each its own partitions or buckets "
        "(hoodoo.write.bucket.range); limit their rate (hoodoo.commit.pace.per.minute); send "
        "small upserts to a hoodoo committer, which writes those of the same rows as one; use a "
        "bucket index with more buckets; use merge-on-read with the mode "
        "NON_BLOCKING_CONCURRENCY_CONTROL"
    ),
    "deleted_under_reader": (
        "a service replaces file groups that writers change: cluster partitions that are no "
        "longer written; let the writer commit first (strategy prefer_writer)"
    ),
    "written_what_is_replaced": "overwrite partitions only while no other process writes to them",
    "partition_claimed": "overwrite or delete partitions while their writers pause",
    "written_into_claim": "overwrite or delete partitions while their writers pause",
    "rolled_back": (
        "heartbeats of live writers expire: raise hoodie.client.heartbeat.tolerable.misses, or "
        "find out why they pause"
    ),
    "source_cleaned": "writes last longer than the retention: raise hoodie.clean.commits.retained",
    "service_conflict": "let writers write into pending clustering (update strategy allow)",
    "duplicate_key": "several writers insert the same new keys: send a key to one writer",
    "schema_conflict": "let one writer change the schema, then start the others",
    "announced_conflict": (
        "writes wait for announced writes: apply the advice for write_conflict; if the waits "
        "are longer than the writes, check only committed writes "
        "(hoodie.write.concurrency.early.conflict.detection.strategy=published)"
    ),
    "keys_dropped": "compact less often if keys are deleted and inserted again",
    "appended_into_read": "several writers insert: use a bucket index, which needs no lookup in files",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictCount:
    """The number of rejections or waits of one writer by another, of one kind."""

    loser: str
    winner: str
    kind: str
    times: int
    written_again: int  # attempts with a new instant; others rebased file groups
    lost_seconds: float  # from a rejected begin to the begin that committed; or waited
    places: tuple[str, ...]  # with the most conflicts


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedInstant:
    """The last attempt of a rejected write; ``explain_instant`` has the rest."""

    requested_time: InstantTime
    writer: str
    kind: str
    rule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """The rejections and waits of a table's writes, most frequent first."""

    writes: int  # committed
    gave_up: int  # rejected writes on record
    refused_attempts: int
    waits: int  # for announced writes, before any computation (BEG-8)
    meetings: tuple[ConflictCount, ...]
    advice: tuple[str, ...]
    rejected: tuple[RejectedInstant, ...]  # the newest rejected writes, newest first

    def as_document(self) -> dict[str, Any]:
        """Return the contention in a JSON-ready form."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the contention as lines for people."""
        attempts = counted(self.refused_attempts, "attempt")
        lines = [f"{counted(self.writes, 'write')} committed, {attempts} rejected"]
        if self.gave_up:
            lines[0] += f", {counted(self.gave_up, 'write')} rejected after the last attempt"
        if self.waits:
            lines[0] += f", {counted(self.waits, 'wait')} for announced writes"
        for one in self.meetings:
            where = f", mostly on {', '.join(one.places)}" if one.places else ""
            lines.append(
                f"{counted(one.times, 'time')} {one.loser} lost to {one.winner}: {one.kind}; "
                f"{one.written_again} written again, {one.lost_seconds:.1f} s lost{where}"
            )
        for text in self.advice:
            cause, _, ways = text.partition(": ")
            lines.append(f"advice: {text}" if "; " not in ways else f"advice: {cause}:")
            lines.extend(f"  - {way}" for way in ways.split("; ") if "; " in ways)
        if self.rejected:
            lines.append("newest rejected writes; 'hoodoo explain TABLE INSTANT' explains one:")
            lines.extend(
                f"  {one.requested_time} by {one.writer}: {one.kind} ({one.rule})"
                for one in self.rejected
            )
        return lines


def measure_contention(context: TableContext, *, archived: bool = False) -> Contention:
    """
    Return the contention of a table, from its committed and its rejected writes.

    Outside: 1 get per completed instant, slot and rejected write; with ``archived`` the files of
    the archived timeline.

    Raises:
        CorruptTableError: A slot cannot be read.
    """
    writes = [one for one in list_instants(context, archived=archived) if one.attempts is not None]
    lost = rejected_writes_of(context)
    conflicts = [each for one in (*writes, *lost) for each in _conflict_counts(one)]
    meetings = sorted(
        (
            _summed(key, [one for one in conflicts if one[0] == key])
            for key in {key for key, *_ in conflicts}
        ),
        key=lambda one: (-one.times, one.loser, one.winner, one.kind),
    )
    kinds = dict.fromkeys(one.kind for one in meetings)
    return Contention(
        writes=len(writes),
        gave_up=len(lost),
        refused_attempts=sum(len(one.refusals) for one in (*writes, *lost)),
        waits=sum(len(one.waits) for one in writes),
        meetings=tuple(meetings),
        advice=tuple(_ADVICE[kind] for kind in kinds if kind in _ADVICE),
        rejected=tuple(
            RejectedInstant(
                requested_time=one.requested_time,
                writer=one.who,
                kind=str(one.refusals[-1].get("kind", "?")),
                rule=str(one.refusals[-1].get("rule", "?")),
            )
            for one in reversed(lost[-_REJECTED_SHOWN_MAX:])
        ),
    )


def _seconds(summary: InstantSummary, instant: InstantTime) -> float:
    wall_ms = summary.zone.wall_ms
    return (wall_ms(summary.requested_time) - wall_ms(instant)) / 1000


_Key = tuple[str, str, str]
_OneConflict = tuple[_Key, bool, float, tuple[str, ...]]


def _conflict_counts(summary: InstantSummary) -> Iterable[_OneConflict]:
    """Yield for each conflict its key, whether all was written again, lost seconds, places."""
    for refusal in summary.refusals:
        instant = str(refusal.get("instant", ""))
        retried = bool(instant) and instant != summary.requested_time
        lost = _seconds(summary, instant) if retried else 0.0
        yield _key_of(summary, refusal), retried, lost, _conflict_places(refusal)
    for wait in summary.waits:
        waited_ms = wait.get("wait_ms", 0)
        lost = waited_ms / 1000 if isinstance(waited_ms, int) else 0.0
        yield _key_of(summary, wait), False, lost, _conflict_places(wait)


def _key_of(summary: InstantSummary, report: Mapping[str, Any]) -> _Key:
    winners = list(report.get("winners", ())) or ["an unknown writer"]
    who = str(winners[0]).rpartition(" by ")[2]
    winner = who.partition(" (pid ")[0] or who  # an application is one writer
    kind = str(report.get("kind") or report.get("rule", "?"))
    return summary.who or summary.writer or "an unknown writer", winner, kind


def _conflict_places(report: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(map(str, (*report.get("file_groups", ()), *report.get("partitions", ()))))


def _summed(key: _Key, conflicts: list[_OneConflict]) -> ConflictCount:
    places = Counter(place for *_, found in conflicts for place in found)
    loser, winner, kind = key
    return ConflictCount(
        loser=loser,
        winner=winner,
        kind=kind,
        times=len(conflicts),
        written_again=sum(retried for _, retried, _, _ in conflicts),
        lost_seconds=round(sum(lost for _, _, lost, _ in conflicts), 3),
        places=tuple(place for place, _ in places.most_common(_PLACES_SHOWN_MAX)),
    )
