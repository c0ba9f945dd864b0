"""The table of scenario families."""

from __future__ import annotations

from tests.simulation.family import Family
from tests.simulation.stories_of_batches import remembering
from tests.simulation.stories_of_dropped_tables import dropped
from tests.simulation.stories_of_metadata import with_metadata_table
from tests.simulation.stories_of_others import beside_another_engine, locking
from tests.simulation.stories_of_restores import restoring_below_an_archive
from tests.simulation.stories_of_services import (
    archiving,
    cleaning,
    clustering,
    compacting,
    restoring,
    undoing,
)
from tests.simulation.stories_of_writers import (
    appending,
    batches,
    clocks,
    far_away,
    growing_schema,
    optimistic,
    power_cuts,
    silent_storage,
)

FAMILIES: tuple[Family, ...] = (
    Family(
        id="S1",
        about="optimistic writers of a copy-on-write table, same and other file groups",
        actors="2 writers, 1 or 2 writes each: upsert, insert, bulk insert, overwrite, delete",
        faults="deaths, silence, unknown answers, lost leases, pauses, a clock that jumps",
        checks="I1-I9, I12, I14, files in slot order; sometimes healing and I16",
        build=optimistic,
        share=20,
    ),
    Family(
        id="S2",
        about="writers that append to the same logs, optimistic and non-blocking",
        actors="2 or 3 writers of a merge-on-read table and up to two compactors",
        faults="deaths, unknown answers, lost leases, pauses",
        checks="as S1; non-blocking: rows by plans and requested times (NBCC-2, NBCC-3)",
        build=appending,
        share=6,
    ),
    Family(
        id="S3",
        about="compaction and log compaction planned, executed, cancelled at every point",
        actors="1 or 2 executors, a canceller or a log compactor, 1 or 2 writers",
        faults="a death, unknown answers",
        checks="as S1, and I10",
        build=compacting,
        share=7,
    ),
    Family(
        id="S4",
        about="clustering with concurrent updates, inserts and overwrites",
        actors="1 or 2 executors, a writer",
        faults="a death, an unknown answer",
        checks="as S1, and I10",
        build=clustering,
        share=5,
    ),
    Family(
        id="S5",
        about="cleaning with a concurrent reader and writer",
        actors="cleaner, reader, writer",
        faults="deaths, silence, a pause",
        checks="as S1, and I3, I4 of the reader's rows",
        build=cleaning,
        share=7,
    ),
    Family(
        id="S6",
        about="two rollbacks, and an owner that is treated as dead and wakes",
        actors="2 rollbackers, a writer, the remains of a dead one",
        faults="long pauses, lost leases, unknown answers, a death",
        checks="as S1",
        build=undoing,
    ),
    Family(
        id="S7",
        about="archiving with concurrent writers; sometimes of a metadata table that differs, too",
        actors="1 or 2 archivers, a writer, sometimes a reader; keepers of the metadata table",
        faults="pauses above the grace, deaths, silence, unknown answers, lost leases",
        checks="as S1; archived stays archived (GC-3); a metadata table that readers trust is right",
        build=archiving,
        share=7,
    ),
    Family(
        id="S8",
        about="a forced restore among writers, with the remains of a dead one",
        actors="restorer, 1 or 2 writers",
        faults="a death, an unknown answer, pauses, lost leases",
        checks="a survivor writes and cleans; rows equal the folded commit log",
        build=restoring,
        share=5,
    ),
    Family(
        id="S9",
        about="heartbeats under a storage that does not answer",
        actors="2 writers, a rollbacker",
        faults="much silence, unknown answers, pauses near the tolerated gap of a heartbeat",
        checks="as S1",
        build=silent_storage,
    ),
    Family(
        id="S10",
        about="the storage-based lock against a model of its store (others: in their suites)",
        actors="2 or 3 contenders for the lock file in an object store, 1 or 2 holdings each",
        faults="silence, unknown answers, deaths, pauses above the lease, clocks that jump",
        checks="I15: one holder by its own clock, tokens ascend, no actor releases another's lock",
        build=locking,
        share=5,
    ),
    Family(
        id="S11",
        about="clocks that are wrong and jump",
        actors="2 writers, up to a minute off",
        faults="jumps of one clock, pauses of all, a death",
        checks="as S1, I6 above all",
        build=clocks,
    ),
    Family(
        id="S12",
        about="a client that dies or hears nothing, and its successor with the same batch id",
        actors="a writer, its successor, another writer",
        faults="deaths, unknown answers, lost leases",
        checks="as S1, I12 above all",
        build=batches,
    ),
    Family(
        id="S13",
        about="a power cut that drops or tears un-synced data",
        actors="writer, cleaner or second writer",
        faults="one power cut",
        checks="as S1, always healed (I16)",
        build=power_cuts,
        share=5,
    ),
    Family(
        id="S14",
        about="a column is added while others write",
        actors="a writer with a new column, another writer",
        faults="deaths, unknown answers, a lost lease",
        checks="as S1",
        build=growing_schema,
        share=7,
    ),
    Family(
        id="S15",
        about="a foreign writer without slots",
        actors="1 or 2 writers of ours, one that has the lock and the timeline only",
        faults="of ours: lost leases, pauses, a death, unknown answers",
        checks="acknowledged rows are there, files appear in order; a survivor writes",
        build=beside_another_engine,
        share=5,
    ),
    Family(
        id="S16",
        about="the table is dropped and made again under a writer",
        actors="2 writers that have it open; a third drops it, creates it again and writes",
        faults="lost leases, pauses, unknown answers; sometimes deaths and silence as well",
        checks="the new table holds its own rows only, no lost write is acknowledged, all continue",
        build=dropped,
        share=3,
    ),
    Family(
        id="S17",
        about="writers on a high-latency store after commits whose files are missing",
        actors="1 to 3 writers without a lock, sometimes a rollback or a cleaner",
        faults="deaths, silence, unknown answers, pauses, a clock that jumps",
        checks="as S1; files in slot order, two commits without one at the most",
        build=far_away,
        share=8,
    ),
    Family(
        id="S18",
        about="batches are sent again while their slots are collected",
        actors="a writer of new batches, 1 or 2 that send old ones again, 1 or 2 archivers",
        faults="pauses above the grace, deaths, silence, unknown answers, lost leases",
        checks="as S7, I12 above all; every acknowledged batch is still known (BATCH-2)",
        build=remembering,
        share=3,
    ),
    Family(
        id="S19",
        about="a restore to a savepoint above an archive, and services before the next write",
        actors="restorer; sometimes compactor or clusterer, cleaner, archiver, a writer",
        faults="a death, unknown answers, pauses, lost leases",
        checks="before and after a survivor moves rows and writes: rows as the chain says, verify",
        build=restoring_below_an_archive,
        share=4,
    ),
    Family(
        id="S20",
        about="a table that has a metadata table, sometimes beside an engine without slots",
        actors="2 writers; helper, rollback, cleaner, clusterers or compactors; remains of a dead one",
        faults="deaths, silence, unknown answers, lost leases, pauses, a clock, a power cut",
        checks="as S1 or S15; at every moment the metadata table shows what the timeline shows",
        build=with_metadata_table,
        share=6,
    ),
)

BY_ID = {family.id: family for family in FAMILIES}


def numbered(block: int, size: int) -> list[tuple[str, int]]:
    """
    The schedules of a block: families alternate by their shares, spread as evenly as possible.

    Numbers continue from block to block, so that any number of blocks repeats none.
    """
    sections = sorted(
        ((section + 0.5) / family.share, at)
        for at, family in enumerate(FAMILIES)
        for section in range(family.share)
    )
    first = block * size
    return [
        (FAMILIES[sections[place % len(sections)][1]].id, place)
        for place in range(first, first + size)
    ]


def of_name(name: str) -> tuple[Family, int]:
    """Read back ``S3:17``."""
    family, _, number = name.partition(":")
    if family not in BY_ID or not number.isdigit():
        raise LookupError(f"no schedule has this name, it is like S3:17: {name}")
    return BY_ID[family], int(number)
