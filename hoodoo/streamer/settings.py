"""Options of the streamer: Hudi's keys, and ``hoodoo.streamer.*`` for the flags of Java's."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from timeline.properties.options import LayeredSettings, OptionKind, option


def _old(key: str) -> tuple[str, ...]:
    """Return the spelling of Hudi before 0.14."""
    return (key.replace("hoodie.streamer.", "hoodie.deltastreamer."),)


class StreamerSettings(LayeredSettings):
    """All settings of a streamer; those of the table and its writes are separate."""

    target: str | None = option(
        "hoodie.streamer.ingestion.targetBasePath",
        None,
        "Path or URI of the table that the streamer writes.",
        aliases=_old("hoodie.streamer.ingestion.targetBasePath"),
    )
    source_class: str | None = option(
        "hoodoo.streamer.source.class",
        None,
        "The source, by the name of Hudi's class: `ParquetDFSSource`, `JsonDFSSource`, "
        "`CsvDFSSource` or `AvroDFSSource`.",
    )
    identifier: str | None = option(
        "hoodoo.streamer.identifier",
        None,
        "Name of this streamer, if several streamers write one table. Each has a checkpoint of its "
        "own. Java's streamer continues the one without a name.",
    )
    checkpoint: str | None = option(
        "hoodoo.streamer.checkpoint",
        None,
        "Begin at this checkpoint instead of the table's. The same text counts once, as in Hudi.",
    )
    ignore_checkpoint: str | None = option(
        "hoodoo.streamer.ignore.checkpoint",
        None,
        "Begin without a checkpoint. The text names this wish; the same text counts once.",
    )
    source_limit: Annotated[int, Field(ge=1)] | None = option(
        "hoodoo.streamer.source.limit",
        None,
        "Most that one batch reads: bytes of files. Default: 256 MiB of files.",
    )
    continuous: bool = option(
        "hoodoo.streamer.continuous",
        False,
        "Go on until stopped. Otherwise the streamer ends when the source has nothing new.",
    )
    interval_ms: Annotated[int, OptionKind.MS, Field(ge=0, le=86_400_000)] = option(
        "hoodoo.streamer.interval.ms",
        0,
        "Least time between the begins of two batches of a continuous streamer.",
    )
    idle_ms: Annotated[int, OptionKind.MS, Field(ge=1, le=86_400_000)] = option(
        "hoodoo.streamer.idle.ms",
        1_000,
        "Pause of a continuous streamer after a look at a source with nothing new.",
    )
    retries_max: Annotated[int, Field(ge=0, le=1_000_000)] = option(
        "hoodoo.streamer.retry.count",
        3,
        "Number of times that a continuous streamer repeats a failed batch, if a repetition may "
        "help. The pause doubles from the idle time.",
    )
    files_root: str | None = option(
        "hoodie.streamer.source.dfs.root",
        None,
        "The folder of a source of files, with its subfolders.",
        aliases=_old("hoodie.streamer.source.dfs.root"),
    )
    files_settle_ms: Annotated[int, OptionKind.MS, Field(ge=1, le=3_600_000)] = option(
        "hoodoo.streamer.source.dfs.settle.ms",
        100,
        "Age from which a file counts. The checkpoint is a time of files, so a younger file must "
        "not appear at a time that was read.",
    )
