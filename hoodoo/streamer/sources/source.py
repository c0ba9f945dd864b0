"""The contract of a source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from hoodoo.streamer.bad_records import BadRecord
from hoodoo.streamer.engine import Rows
from timeline.errors import InvalidInputError


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceBatch:
    """
    The rows between two checkpoints.

    Args:
        rows: The rows, of the engine or of pyarrow; None if the source has nothing new.
        checkpoint: The position after them; None if there is none yet.
        has_more: Whether the source had more when it was read.
        bad: Records that cannot be read, if the source may leave them out.
    """

    rows: Rows | None
    checkpoint: str | None
    has_more: bool = False
    bad: tuple[BadRecord, ...] = ()


class Source(Protocol):
    """A source of rows."""

    @property
    def address(self) -> str:
        """The text that identifies it; a checkpoint is valid for this source only."""

    def check(self, checkpoint: str | None) -> None:
        """
        Check that the source can be read from a checkpoint on; None for its begin.

        Raises:
            InvalidInputError: The source cannot be read, or the checkpoint has another form.
        """

    def read(self, checkpoint: str | None, schema: pa.Schema | None) -> SourceBatch:
        """
        Read the next batch.

        Args:
            checkpoint: The position; None for the begin.
            schema: The columns, whose types values without a type take; None if not known.

        Raises:
            InvalidInputError: The source cannot be read.
        """

    def close(self) -> None:
        """Close connections."""


def unreadable(address: str, why: str) -> InvalidInputError:
    """Return the error of a source that cannot be read; ``why`` ends with the next step."""
    return InvalidInputError(
        f"the source cannot be read, {why}: {address}", kind="unreadable_source", source=address
    )


def wrong_checkpoint(address: str, checkpoint: str, wanted: str) -> InvalidInputError:
    """Return the error of a checkpoint that no read of the source can have written."""
    return InvalidInputError(
        f"the checkpoint is not one of this source, which has {wanted}: name the source or table "
        "that it belongs to, or begin elsewhere with --checkpoint or --ignore-checkpoint: "
        f"checkpoint={checkpoint[:200]!r} source={address}",
        kind="streamer_checkpoint",
        checkpoint=checkpoint,
        source=address,
    )
