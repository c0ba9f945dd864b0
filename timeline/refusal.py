"""
A refusal as a document: who won, what meets, which rule fired, whether a retry can succeed.

"Cannot resolve conflicts" without a reason is what users of table formats complain of
most; here every refused attempt says all of it, in data and in one line of text.
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
    TableConfigConflictError,
    WriteConflictError,
)
from timeline.model.times import InstantTime
from timeline.rules.conflicts import Rebaseable, Refused, RuleId

__all__ = ["RefusalReport", "as_error", "report_of"]

_SHOWN_MAX = 20

_ERRORS: dict[RuleId, type[ConflictError]] = {
    RuleId.PARTITION_CLAIMED_BY_OTHER: ClaimConflictError,
    RuleId.WRITTEN_INTO_MY_CLAIM: ClaimConflictError,
    RuleId.PENDING_PLAN_OWNS_FILE_GROUP: ServiceConflictError,
    RuleId.SAME_NEW_KEY: DuplicateKeyError,
    RuleId.SCHEMA_CHANGED: SchemaConflictError,
    RuleId.METADATA_TABLE_SWITCHED_ON: TableConfigConflictError,
    RuleId.TABLE_UPGRADED: TableConfigConflictError,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalReport:
    """Why one attempt was not published."""

    instant: InstantTime
    rule: str
    why: str
    winners: tuple[str, ...]  # "<requested time> <action> by <who>"
    file_groups: tuple[str, ...]
    partitions: tuple[str, ...]
    retry_can_succeed: bool
    redo: str  # "file groups", "everything" or "nothing"

    @property
    def text(self) -> str:
        """One line for people."""
        what = ", ".join(self.file_groups[:3] or self.partitions[:3]) or "this instant"
        more = len(self.file_groups or self.partitions) - 3
        tail = f" and {more} more" if more > 0 else ""
        winner = f"; winner {'; '.join(self.winners)}" if self.winners else ""
        return f"{self.rule}: {self.why}{winner}; meets on {what}{tail}"

    def as_document(self) -> dict[str, Any]:
        """JSON-ready form."""
        return asdict(self)


def report_of(instant: InstantTime, verdict: Rebaseable | Refused) -> RefusalReport:
    """The report of a verdict about one attempt."""
    rebaseable = isinstance(verdict, Rebaseable)
    retry = rebaseable or (isinstance(verdict, Refused) and verdict.retry_can_succeed)
    return RefusalReport(
        instant=instant,
        rule=verdict.rule.value,
        why=verdict.why,
        winners=tuple(
            f"{rival.requested_time} {rival.action.value}"
            + (f" by {rival.writer}" if rival.writer else " by an unknown writer")
            for rival in verdict.rivals[:_SHOWN_MAX]
        ),
        file_groups=tuple(str(group) for group in verdict.file_groups[:_SHOWN_MAX]),
        partitions=() if isinstance(verdict, Rebaseable) else verdict.partitions[:_SHOWN_MAX],
        retry_can_succeed=retry,
        redo="file groups" if rebaseable else ("everything" if retry else "nothing"),
    )


def as_error(report: RefusalReport, rule: RuleId) -> ConflictError | RolledBackError:
    """The error class of a rule, carrying the report (field ``report``)."""
    if rule is RuleId.TARGET_OF_ROLLBACK:
        return RolledBackError(
            f"{report.text}; write again",
            requested_time=report.instant,
            report=report.as_document(),
        )
    kind = _ERRORS.get(rule, WriteConflictError)
    return kind(f"refused by a conflict: {report.text}", report=report.as_document())
