"""
Report a conflict: the winner, the file groups, the rule, and whether a retry can succeed.

Users of table formats often complain about "Cannot resolve conflicts" without a reason. Here every
rejected attempt reports all of it, as data and as one line of text.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from timeline.errors import (
    ClaimConflictError,
    ConflictError,
    DuplicateKeyError,
    RolledBackError,
    SchemaConflictError,
    ServiceConflictError,
    TableChangedError,
    WriteConflictError,
)
from timeline.model.instant_time import InstantTime
from timeline.rules.conflicts import Rebase, Rejected, RuleId

_SHOWN_MAX = 20
_BOUND = "hoodie.write.num.retries.on.conflict.failures"

#: Rule -> its error and the error's kind. The class defines what the caller does, the kind what the
#: conflict is.
_ERRORS: dict[RuleId, tuple[type[ConflictError | RolledBackError], str]] = {
    RuleId.SAME_FILE_GROUP_WRITTEN: (WriteConflictError, "write_conflict"),
    RuleId.FILE_GROUP_REPLACED: (WriteConflictError, "deleted_under_reader"),
    RuleId.WRITTEN_WHAT_I_REPLACE: (WriteConflictError, "written_what_is_replaced"),
    RuleId.PARTITION_CLAIMED_BY_OTHER: (ClaimConflictError, "partition_claimed"),
    RuleId.WRITTEN_INTO_MY_CLAIM: (ClaimConflictError, "written_into_claim"),
    RuleId.TARGET_OF_ROLLBACK: (RolledBackError, "rolled_back"),
    RuleId.SOURCE_NOT_NEWEST: (WriteConflictError, "source_cleaned"),
    RuleId.PENDING_PLAN_OWNS_FILE_GROUP: (ServiceConflictError, "service_conflict"),
    RuleId.SAME_NEW_KEY: (DuplicateKeyError, "duplicate_key"),
    RuleId.SCHEMA_CHANGED: (SchemaConflictError, "schema_conflict"),
    RuleId.SAME_BATCH: (WriteConflictError, "same_batch"),
    RuleId.METADATA_TABLE_CHANGED: (WriteConflictError, "metadata_table_changed"),
    RuleId.TABLE_UPGRADED: (TableChangedError, "table_version_changed"),
    RuleId.KEYS_DROPPED: (WriteConflictError, "keys_dropped"),
    RuleId.REPLACED_TWICE: (WriteConflictError, "deleted_twice"),
    RuleId.INSERTED_WHERE_I_MISSED: (WriteConflictError, "appended_into_read"),
    RuleId.PROPERTIES_CHANGED: (TableChangedError, "properties_changed"),
    RuleId.STRATEGY_REFUSED: (WriteConflictError, "strategy"),
    RuleId.READ_WAS_CHANGED: (WriteConflictError, "changed_under_read"),
    RuleId.ANNOUNCED_BY_OTHER: (WriteConflictError, "announced_conflict"),
    RuleId.NESTED_PARTITION: (WriteConflictError, "nested_conflict"),
}


#: Rule -> the stable code of its errors and reports.
KINDS: dict[RuleId, str] = {rule: kind for rule, (_, kind) in _ERRORS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictReport:
    """Why one attempt was not committed."""

    instant: InstantTime
    rule: str
    kind: str  # as of the error that the last attempt raises
    why: str
    winners: tuple[str, ...]  # "<requested time> <action> by <writer>"
    file_groups: tuple[str, ...]
    partitions: tuple[str, ...]
    retry_can_succeed: bool
    redo: str  # "file groups", "everything" or "nothing"

    @property
    def text(self) -> str:
        """Return the report as one line of text."""
        conflicting = self.file_groups or self.partitions
        more = len(conflicting) - 3
        tail = f" and {more} more" if more > 0 else ""
        winner = f"; winner {'; '.join(self.winners)}" if self.winners else ""
        where = f"; both access {', '.join(conflicting[:3])}{tail}" if conflicting else ""
        return f"{self.rule}: {self.why}{winner}{where}"

    def as_document(self) -> dict[str, Any]:
        """Return the report in a form ready for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitReport:
    """A wait, before any data file, for writes that had announced the same (BEG-8)."""

    report: ConflictReport  # as if it had been rejected instead
    wait_ms: int

    def as_document(self) -> dict[str, Any]:
        """Return the report in a form ready for JSON."""
        return {**self.report.as_document(), "wait_ms": self.wait_ms}


def conflict_report_of(instant: InstantTime, verdict: Rebase | Rejected) -> ConflictReport:
    """Return the conflict report of a verdict about one attempt."""
    rebaseable = isinstance(verdict, Rebase)
    retry = rebaseable or (isinstance(verdict, Rejected) and verdict.retry_can_succeed)
    return ConflictReport(
        instant=instant,
        rule=verdict.rule.value,
        kind=KINDS[verdict.rule],
        why=verdict.why,
        winners=tuple(
            f"{concurrent.requested_time} {concurrent.action.value}"
            + (f" by {concurrent.writer}" if concurrent.writer else " by an unknown writer")
            for concurrent in verdict.concurrent_commits[:_SHOWN_MAX]
        ),
        file_groups=tuple(str(group) for group in verdict.file_groups[:_SHOWN_MAX]),
        partitions=() if isinstance(verdict, Rebase) else verdict.partitions[:_SHOWN_MAX],
        retry_can_succeed=retry,
        redo="file groups" if rebaseable else ("everything" if retry else "nothing"),
    )


def conflict_error(
    report: ConflictReport, rule: RuleId, bound: str = _BOUND, *, wasted_bytes: int = 0
) -> ConflictError | RolledBackError:
    """
    Return the error of a rule, with its kind and the report.

    Args:
        report: The conflict.
        rule: The rule that found it.
        bound: The option that forbids another retry.
        wasted_bytes: Bytes that the rejected attempts had written.
    """
    error, kind = _ERRORS[rule]
    document = report.as_document()
    if issubclass(error, RolledBackError):
        return error(
            f"{report.text}; write again",
            kind=kind,
            requested_time=report.instant,
            report=document,
        )
    again = (
        f"; write again, or raise {bound} so that the engine retries by itself"
        if report.retry_can_succeed
        else ""
    )
    message = f"instant {report.instant} was rejected by a conflict: {report.text}{again}"
    return error(message, kind=kind, report=document, wasted_bytes=wasted_bytes)
