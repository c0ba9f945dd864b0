"""
The changed rows of another Hudi table.

The checkpoint is Hudi's of version 8 and later: the completion time of the newest instant that was
read. A row that was written several times comes once, in its newest state of the range. Deletes do
not come.
"""

from __future__ import annotations

import re

import pyarrow as pa

from hoodoo.streamer.engine import Engine
from hoodoo.streamer.settings import MissingCheckpoint, StreamerSettings
from hoodoo.streamer.sources.source import SourceBatch, wrong_checkpoint
from hoodoo.table import Table
from timeline.model.instant import Instant

_TIME = re.compile(r"\d{17}")
_WISH = re.compile(r"resumeFromInstant(Completion|Request)Time\s*:\s*(\d{17})")


class HudiSource:
    """
    A source of changed rows.

    Args:
        settings: Of the streamer.
        table: The table to read.
        engine: Reads its changes.
    """

    def __init__(self, settings: StreamerSettings, table: Table, engine: Engine) -> None:
        self._settings = settings
        self._table = table
        self._engine = engine

    @property
    def address(self) -> str:
        return f"hudi:{self._table.context.ports.storage.base_uri}"

    def check(self, checkpoint: str | None) -> None:
        self._after(checkpoint)

    def read(self, checkpoint: str | None, schema: pa.Schema | None) -> SourceBatch:  # noqa: ARG002
        since, writes = self._after(checkpoint)
        limit = self._settings.hudi_instants_max
        if checkpoint is None:
            limit = max(1, len(writes))  # one batch has the newest state of the whole table
        for begin in range(0, len(writes), limit):
            part = writes[begin : begin + limit]
            until = _completed(part[-1])
            rows = self._engine.changes(self._table, since, until)
            if rows is not None:
                more = begin + len(part) < len(writes)
                return SourceBatch(rows=rows, checkpoint=until, has_more=more)
            since = until  # a service writes rows of earlier instants
        return SourceBatch(rows=None, checkpoint=checkpoint)

    def close(self) -> None:
        self._table.close()

    def _after(self, checkpoint: str | None) -> tuple[str, list[Instant]]:
        """Return the completion time of a checkpoint and the writes after it, the oldest first."""
        writes = self._table.snapshot.writes_newest_first()[::-1]
        if checkpoint is None:
            strategy = self._settings.missing_checkpoint
            latest = self._settings.reads_latest or strategy is MissingCheckpoint.LATEST
            if latest and len(writes) > 1:
                return _completed(writes[-2]), writes[-1:]
            return "earliest", writes
        time = self._time(checkpoint, writes)
        newest = _completed(writes[-1]) if writes else "none"
        if not writes or time > newest:
            raise wrong_checkpoint(self.address, checkpoint, f"the newest completion time {newest}")
        return time, [one for one in writes if _completed(one) > time]

    def _time(self, checkpoint: str, writes: list[Instant]) -> str:
        """Return the completion time that a checkpoint, or Java's flag ``--checkpoint``, names."""
        if _TIME.fullmatch(checkpoint):
            return checkpoint
        wish = _WISH.fullmatch(checkpoint)
        if wish is None:
            raise wrong_checkpoint(self.address, checkpoint, "completion times of 17 digits")
        if wish[1] == "Completion":
            return wish[2]
        found = [_completed(one) for one in writes if one.requested_time == wish[2]]
        if not found:
            raise wrong_checkpoint(self.address, checkpoint, "no active write of that time")
        return found[0]


def _completed(instant: Instant) -> str:
    return instant.completion_time or instant.requested_time
