"""What is told of one instant: as a document for machines, as a story for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from timeline.model.instant_time import UTC_ZONE, InstantTime, TimelineZone

__all__ = ["InstantSummary", "time_text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstantSummary:
    """One instant, told. Empty texts and None mean that nobody wrote it down."""

    requested_time: InstantTime
    completion_time: InstantTime | None
    action: str
    state: str
    archived: bool
    operation: str = ""
    writer: str = ""
    host: str = ""
    pid: int | None = None
    application: str = ""
    slot_number: int | None = None
    fencing_token: int | None = None
    attempts: int | None = None
    refusals: tuple[Mapping[str, Any], ...] = ()
    waits: tuple[Mapping[str, Any], ...] = ()  # for writes that had announced the same (BEG-8)
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0
    files_written: int = 0
    files_deleted: int = 0
    bytes_written: int = 0
    partitions: tuple[str, ...] = ()
    file_groups: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    zone: TimelineZone = UTC_ZONE  # in which the times are told

    @property
    def who(self) -> str:
        """The application if it has a name, else process and host."""
        if self.application:
            return self.application
        return f"pid {self.pid} on {self.host}" if self.host else ""

    @property
    def seconds(self) -> float | None:
        """From the request to the completion."""
        if self.completion_time is None:
            return None
        wall_ms = self.zone.wall_ms
        return (wall_ms(self.completion_time) - wall_ms(self.requested_time)) / 1000

    @property
    def rows_text(self) -> str:
        """``+inserted ~updated -deleted``, what is zero left out."""
        parts = (("+", self.rows_inserted), ("~", self.rows_updated), ("-", self.rows_deleted))
        return " ".join(f"{sign}{count}" for sign, count in parts if count)

    @property
    def met(self) -> tuple[str, ...]:
        """In short, for each refused attempt: the rule and the winner."""
        return tuple(
            f"{each.get('rule', '?')} {'; '.join(each.get('winners', ())) or 'nobody known'}"
            for each in self.refusals
        )

    @property
    def refusals_text(self) -> tuple[str, ...]:
        """One line for each refused attempt: the rule, who won, what is done again."""
        return tuple(
            f"{each.get('rule', '?')} {each.get('why', '')}; won by "
            + ("; ".join(each.get("winners", ())) or "nobody known")
            + f"; redone: {each.get('redo', '?')}"
            for each in self.refusals
        )

    @property
    def waits_text(self) -> tuple[str, ...]:
        """One line for each wait: how long, for whom."""
        return tuple(
            f"{each.get('wait_ms', '?')} ms for what was announced before: "
            + ("; ".join(each.get("winners", ())) or "nobody known")
            for each in self.waits
        )

    def as_document(self) -> dict[str, Any]:
        """JSON-ready form."""
        document = asdict(replace(self, zone=UTC_ZONE)) | {"zone": self.zone.name}
        document["seconds"] = self.seconds
        return document

    def lines(self) -> list[str]:
        """The story for people."""
        told = [f"{self.action} {self.requested_time}: {self.state}"]
        if self.archived:
            told.append("archived")
        if self.operation:
            told.append(f"operation {self.operation.lower()}")
        if self.host or self.application:
            told.append(f"by {self.application or '-'} (pid {self.pid} on {self.host})")
        told.append(f"requested {time_text(self.requested_time)} {self.zone.name}")
        if self.completion_time is not None:
            told.append(
                f"completed {time_text(self.completion_time)} {self.zone.name}, after {self.seconds} s"
            )
        if self.slot_number is not None:
            token = f", fencing token {self.fencing_token}" if self.fencing_token else ""
            told.append(f"published as number {self.slot_number} of this table{token}")
        if self.rows_text or self.files_written:
            told.append(
                f"rows {self.rows_text or 0}; {self.files_written} files, "
                f"{self.bytes_written} bytes, in {len(self.partitions)} partitions"
            )
        if self.files_deleted:
            told.append(f"{self.files_deleted} files deleted")
        if self.attempts is not None:
            told.append(f"attempts {self.attempts}")
        told.extend(f"refused: {text}" for text in self.refusals_text)
        told.extend(f"waited: {text}" for text in self.waits_text)
        told.extend(self.remarks)
        return told


def time_text(time: InstantTime) -> str:
    """An instant time as people read it: ``2026-11-21 10:09:56.962``."""
    text = time if len(time) == 17 else f"{time}000"
    date = f"{text[:4]}-{text[4:6]}-{text[6:8]}"
    return f"{date} {text[8:10]}:{text[10:12]}:{text[12:14]}.{text[14:]}"
