"""
The table of guards: each is dropped once, and a schedule or test must find it.

Most are found in the schedules of some families; a few have a written interleaving or a
small scope that shows them at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tests.simulation import mutants, scopes
from tests.simulation import test_clean_by_owner as cleaners
from tests.simulation import test_engine_archive as archives
from tests.simulation import test_hole_rollback as rollbacks
from tests.simulation import test_hole_slots as slots
from tests.simulation import test_hole_times as times
from tests.simulation import test_hole_writers as writers
from tests.simulation import test_metadata_table as metadata
from tests.simulation import test_plans_by_owner as owners
from tests.simulation.dropped_guards import (
    AsksNewestBoundary,
    Batchless,
    BelievesItsLogs,
    Change,
    CreatesLoosely,
    DeletesFolders,
    EndsTableFirst,
    FirstSaysFailed,
    Gaps,
    HelpsNobody,
    HelpsUnseen,
    HelpsWithoutMetadata,
    KeepsData,
    KeepsLogsOfTheDead,
    KeepsMetadataInstants,
    KeepsMetadataLogs,
    KeepsNewestBoundary,
    KeepsPendingInstants,
    LogsBeforeSlot,
    LooksBeforeItsSlot,
    LooksForBatchesFirst,
    LooksOnce,
    LooseDeltacommits,
    OneNameForAll,
    ReaderForgets,
    ReadsPropertiesOnce,
    Replaces,
    ReplacesAll,
    SeesNoCancels,
    SeesNoCleans,
    SeesNoCommits,
    SeesNoLeases,
    SeesNoneMissing,
    SeesNoPending,
    ShowsCommitFirst,
    ShowsFirst,
    StopsAtAnothers,
    SyncsNoMetadata,
    SyncsNothing,
    TakesAnothersForItsOwn,
    TakesUnknownForArchived,
    TrustsTheAddress,
    VoidKeepsFiles,
    WithoutRequested,
    WithoutTombstones,
    _ForgetsArchivedContext,
    _LooksOnceContext,
    bare_clock,
    commit_log,
    context_of,
    no_look_after_begin,
    only,
    same_nonce,
    storage,
)
from tests.simulation.engine_kit import found_by, mutation, rows_now
from tests.simulation.story_kit import lock_free
from tests.simulator.faults import Fault
from tests.simulator.interleavings import Scene, cover
from tests.simulator.trace import Trace
from tests.simulator.world import SimulatedSystem
from timeline.context import TableContext
from timeline.model.commit_metadata import WriteOperation
from timeline.model.file_names import BOUNDARIES

# ---------------------------------------------------------------- stories and scopes


def unchanged(context: TableContext) -> TableContext:
    return context


def found_after(play: Callable[[], tuple[SimulatedSystem, Trace]]) -> Callable[[], str]:
    """Return the findings after a written interleaving."""
    return lambda: found_by(*play())


def in_scope(name: str, change: Change) -> Callable[[], str]:
    """Return the findings about a mutant of the search through a scope."""

    def explore() -> str:
        with mutation(change):
            seen = scopes.BY_ID[name].explore(runs_max=1_000)
        return (seen.failed.failure or "") if seen.failed is not None else ""

    return explore


def of_mutant(change: Change, story: Callable[[], str]) -> Callable[[], str]:
    """Return the findings in a story whose actors all have the mutant."""

    def play() -> str:
        with mutation(change):
            return story()

    return play


def built_unseen() -> str:
    def make(world: Any) -> TableContext:
        return storage(ReadsPropertiesOnce)(lock_free(world))

    return metadata.built_meanwhile(make)


def beats_again() -> str:
    world, _ = rollbacks.paused(mutants.unfenced)
    return "HB-3: it beats again" if rollbacks.beats_of_first_instant(world) > 1 else ""


def both_let_in() -> str:
    def make() -> Scene:
        enter: Any = mutants.enter_with_one_look
        world, actors = writers.two_newcomers(enter)
        return Scene(world=world, actors=actors, check_end=writers.both_entered(enter))

    seen = cover(make)
    return (seen.failed.failure or "") if seen.failed is not None else ""


def ignored_pin() -> str:
    _, _, found, failure = archives.waking_owner(sleep_ms=0, pins=False)
    return failure + "; ".join(map(str, found))


def unmoved_boundary() -> str:
    def boundless(world: Any) -> TableContext:
        return archives.registered(
            replace(world, storage=archives.Without(world.storage, BOUNDARIES))
        )

    return archives.late_creator(boundless)


class NoBoundaries(archives.Without):
    """Shows no boundary, in either listing."""

    def names(self, folder: str) -> Any:
        return [] if folder == self._folder else self._inner.names(folder)


def unread_boundary() -> str:
    def blind(world: Any, make: Callable[..., TableContext]) -> TableContext:
        hidden = replace(world, storage=NoBoundaries(world.storage, BOUNDARIES))
        return archives.registered(hidden, make=make)

    return archives.late_creator(make_writer=blind)


def unread_boundary_without_entry() -> str:
    def blind(world: Any, make: Callable[..., TableContext]) -> TableContext:
        return make(replace(world, storage=NoBoundaries(world.storage, BOUNDARIES)))

    return archives.late_creator(make_writer=blind)


def hanging_beat() -> str:
    return archives.hanging_beat(archives.trusted_at_once)


def doubled_rows() -> str:
    world, _ = writers.overwrite(
        mutants.with_chain(mutants.FileIdChain), WriteOperation.INSERT_OVERWRITE
    )
    try:
        rows_now(world)
    except AssertionError as broken:
        return f"I14: {broken}"
    return ""


def planned_twice() -> str:
    world = owners.planned_twice((owners.SLOT, owners.LOOK), (), ours=owners.alone)
    plans = max(owners.planned_for(world))
    return f"{plans} pending compactions of one file group" if plans > 1 else ""


def cleaned_behind() -> str:
    died = (Fault.CRASH_BEFORE,)
    world = cleaners.pinned_during_clean((owners.SLOT, owners.SHOW), died, ours=owners.alone)
    lost = cleaners.broken(world)
    return f"a clean took files of a savepoint: {lost}" if lost else ""


def collide() -> str:
    return found_by(*times.collide(atomic_create=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """One guard, the engine's behaviour without it, and the schedules to search first."""

    name: str
    rule: str
    change: Change = unchanged
    families: tuple[str, ...] = ("S1",)
    # a written interleaving or a scope that shows the mutant
    story: Callable[[], str] | None = None
    story_name: str = ""


GUARDS: tuple[Guard, ...] = (
    Guard(
        name="overwrites slots",
        rule="SLOT-1, hole 4, M1",
        change=commit_log(mutants.OverwritingChain),
    ),
    Guard(
        name="takes another's slot for its own",
        rule="SLOT-1",
        change=commit_log(TakesAnothersForItsOwn),
    ),
    Guard(
        name="leaves a number out", rule="SLOT-1", change=commit_log(Gaps), families=("S7", "S11")
    ),
    Guard(name="shows before its slot", rule="SLOT-1", change=commit_log(ShowsFirst)),
    Guard(name="one nonce for all", rule="UNK-2", change=same_nonce),
    Guard(
        name="lost answer is a failure",
        rule="UNK-1, hole 17, M3",
        change=commit_log(mutants.ImpatientChain),
        families=("S9", "S1"),
    ),
    Guard(
        name="lost answer lets it delete",
        rule="UNK-3, M5",
        change=commit_log(FirstSaysFailed),
        families=("S9", "S1"),
    ),
    Guard(
        name="own 'exists' is another's",
        rule="UNK-2, M2, M4, M6",
        change=commit_log(mutants.ForgetfulChain),
        families=("S9", "S1"),
    ),
    Guard(
        name="stops at another table's slot",
        rule="SLOT-8, F27",
        change=commit_log(StopsAtAnothers),
        families=("S16",),
    ),
    Guard(
        name="an address is an identity",
        rule="SLOT-9, SLOT-10, F27",
        change=commit_log(TrustsTheAddress),
        families=("S16",),
    ),
    Guard(
        name="helps without a look at the table",
        rule="SLOT-10, F27",
        change=commit_log(HelpsUnseen),
        families=("S16",),
    ),
    Guard(name="judges nothing", rule="PUB-4", change=commit_log(mutants.BlindChain)),
    Guard(name="knows file ids only", rule="BEG-7, hole 9", change=commit_log(mutants.FileIdChain)),
    Guard(
        name="times from the bare clock",
        rule="TL-SUCC-1, hole 2",
        change=bare_clock,
        families=("S11", "S1"),
    ),
    Guard(name="no look after begin", rule="BEG-5, M14", change=no_look_after_begin),
    Guard(
        name="believes slots settled",
        rule="PUB-3",
        change=context_of(mutants._NoHelperContext),
        families=("S1", "S9"),
    ),
    Guard(
        name="helps nobody",
        rule="PUB-3, HELP-1",
        change=storage(HelpsNobody),
        families=("S17",),
    ),
    Guard(
        name="one look at the timeline",
        rule="PUB-7, RB-4",
        change=context_of(_LooksOnceContext),
        families=("S1", "S6"),
    ),
    Guard(name="batch ids unread", rule="BATCH-1", change=commit_log(Batchless), families=("S12",)),
    Guard(
        name="batch looked for once",
        rule="BATCH-1",
        change=commit_log(LooksForBatchesFirst),
        families=("S12",),
    ),
    Guard(
        name="replaces .requested",
        rule="TL-REQ-1, hole 1",
        change=storage(Replaces),
        families=("S11", "S1"),
    ),
    Guard(name="look, then write", rule="CAP-1, hole 16", change=storage(ReplacesAll)),
    Guard(
        name="keeps aborted data",
        rule="RB-6, PUB-1, M9",
        change=storage(KeepsData),
        families=("S6", "S1"),
    ),
    Guard(
        name="deletes folders",
        rule="CLN-1, M8",
        change=storage(DeletesFolders),
        families=("S5", "S6"),
    ),
    Guard(name="syncs no folder", rule="LOC-2", change=storage(SyncsNothing), families=("S13",)),
    Guard(
        name="creates without sync", rule="LOC-2", change=storage(CreatesLoosely), families=("S13",)
    ),
    Guard(
        name="pending unseen",
        rule="PUB-6, GC-1",
        change=storage(SeesNoPending),
        families=("S6", "S7", "S1"),
    ),
    Guard(
        name="a taken name is its own",
        rule="BEG-6",
        change=storage(ReaderForgets),
        families=("S11",),
    ),
    Guard(
        name="rivals by requested time",
        rule="PUB-4, hole 20",
        change=commit_log(mutants._RequestedWindowChain),
    ),
    Guard(
        name="clustering looks once",
        rule="CL-1, hole 10",
        change=commit_log(mutants.BlindChain),
        families=("S4",),
    ),
    Guard(
        name="gives up named boundaries",
        rule="BATCH-2",
        change=storage(KeepsNewestBoundary),
        families=("S18",),
    ),
    Guard(
        name="asks the newest boundary only",
        rule="BATCH-2",
        change=storage(AsksNewestBoundary),
        families=("S18",),
    ),
    Guard(
        name="forgets what is archived",
        rule="GC-7, fmt 6.3",
        change=context_of(_ForgetsArchivedContext),
        families=("S19",),
    ),
    Guard(
        name="keeps superseded log files",
        rule="MDT-2",
        story=of_mutant(storage(KeepsMetadataLogs), metadata.rebased),
        story_name="story of a rebase",
    ),
    Guard(
        name="syncs no log file of the metadata table",
        rule="MDT-2, LOC-2",
        story=of_mutant(storage(SyncsNoMetadata), metadata.power_failed),
        story_name="story of a power failure",
    ),
    Guard(
        name="shows the commit first",
        rule="MDT-4",
        change=storage(ShowsCommitFirst),
        families=("S20",),
    ),
    Guard(
        name="deltacommit without requested",
        rule="MDT-4",
        change=storage(WithoutRequested),
        families=("S20",),
    ),
    Guard(
        name="deltacommit without sync",
        rule="MDT-4, LOC-2",
        story=of_mutant(storage(LooseDeltacommits), metadata.power_failed),
        story_name="story of a power failure",
    ),
    Guard(
        name="helps without a deltacommit",
        rule="MDT-4, HELP-1",
        change=storage(HelpsWithoutMetadata),
        families=("S20",),
    ),
    Guard(
        name="reads the partitions once",
        rule="MDT-5",
        story=built_unseen,
        story_name="story of a build",
    ),
    Guard(
        name="ends the write on the table first",
        rule="MDT-7",
        story=of_mutant(storage(EndsTableFirst), metadata.rolled_back_by_another_engine),
        story_name="story of a rollback by Java",
    ),
    Guard(
        name="keeps late deltacommits",
        rule="RST-4, MDT-10",
        story=of_mutant(
            storage(KeepsMetadataInstants), partial(metadata.rolled_back_in_the_metadata_table, 2)
        ),
        story_name="story of a void write",
    ),
    Guard(
        name="believes its log files",
        rule="MDT-10",
        story=of_mutant(
            storage(BelievesItsLogs), partial(metadata.rolled_back_in_the_metadata_table, 2)
        ),
        story_name="story of a void write",
    ),
    Guard(
        name="log files before the slot",
        rule="MDT-9",
        story=of_mutant(commit_log(LogsBeforeSlot), metadata.beaten_clustering),
        story_name="story of a beaten clustering",
    ),
    Guard(
        name="one name for all log files",
        rule="MDT-9, MDT-10",
        story=of_mutant(
            commit_log(OneNameForAll), partial(metadata.void_clustering, metadata.LOGS)
        ),
        story_name="story of a void clustering",
    ),
    Guard(
        name="looks before its slot only",
        rule="MDT-17",
        story=of_mutant(storage(LooksBeforeItsSlot), metadata.merged_meanwhile),
        story_name="story of a log compaction",
    ),
    Guard(
        name="void keeps the deltacommit",
        rule="MDT-10",
        story=of_mutant(
            commit_log(VoidKeepsFiles), partial(metadata.rolled_back_in_the_metadata_table, 0)
        ),
        story_name="story of a void write",
    ),
    Guard(
        name="cleans without tombstones",
        rule="MDT-9",
        change=commit_log(WithoutTombstones),
        families=("S20",),
    ),
    Guard(
        name="archives what the metadata table lacks",
        rule="MDT-8",
        change=only("X", storage(SeesNoneMissing)),
        families=("S7",),
    ),
    Guard(
        name="archives around what the table lacks",
        rule="MDT-8",
        change=only("XK", context_of(TakesUnknownForArchived)),
        families=("S7",),
    ),
    Guard(
        name="the dead hold the archive of the metadata table",
        rule="MDT-8",
        story=of_mutant(storage(KeepsPendingInstants), metadata.left_pending),
        story_name="story of a dead engine",
    ),
    Guard(
        name="keeps log files of a dead engine",
        rule="MDT-8",
        story=of_mutant(storage(KeepsLogsOfTheDead), metadata.left_pending),
        story_name="story of a dead engine",
    ),
    Guard(
        name="takes a paused writer for a dead engine",
        rule="MDT-8",
        story=of_mutant(only("K", storage(SeesNoPending)), metadata.paused_in_the_metadata_table),
        story_name="story of a paused writer",
    ),
    Guard(
        name="reads back once",
        rule="UNK-1",
        story=in_scope("X14", commit_log(LooksOnce)),
        story_name="scope X14",
    ),
    Guard(
        name="rolls back what is published",
        rule="RB-3, hole 8, M11",
        story=in_scope("X4", commit_log(SeesNoCommits)),
        story_name="scope X4",
    ),
    Guard(
        name="executes a cancelled plan",
        rule="CMP-1",
        story=in_scope("X9", commit_log(SeesNoCancels)),
        story_name="scope X9",
    ),
    Guard(
        name="compares no keys",
        rule="PUB-4, hole 3",
        story=found_after(partial(writers.same_new_key, mutants.with_chain(mutants.KeylessChain))),
        story_name="story of hole 3",
    ),
    Guard(
        name="claims no partition",
        rule="BEG-7, hole 9",
        story=doubled_rows,
        story_name="story of hole 9",
    ),
    Guard(
        name="two processes, one time",
        rule="TL-REQ-1, hole 1",
        story=collide,
        story_name="story of hole 1",
    ),
    Guard(
        name="deletes without an abort slot",
        rule="RB-1, hole 6",
        story=found_after(partial(rollbacks.woken, mutants.delete_dead_writers)),
        story_name="story of hole 6",
    ),
    Guard(
        name="believes its old listing",
        rule="RB-4, hole 8",
        story=found_after(partial(rollbacks.just_committed, mutants.delete_dead_writers)),
        story_name="story of hole 8",
    ),
    Guard(
        name="overwrites an abort slot",
        rule="RB-5, hole 7",
        story=found_after(
            partial(
                slots.two_rollbackers,
                mutants.with_chain(mutants.OverwritingChain),
                "write" + slots.SLOT,
            )
        ),
        story_name="story of hole 7",
    ),
    Guard(
        name="beats again after a pause",
        rule="HB-3, hole 5",
        story=beats_again,
        story_name="story of hole 5",
    ),
    Guard(
        name="compares once at its entry",
        rule="REG-1, hole 13",
        story=both_let_in,
        story_name="scope of hole 13",
    ),
    Guard(
        name="pins not read", rule="GC-3", story=ignored_pin, story_name="story of a waking owner"
    ),
    Guard(
        name="boundary not moved",
        rule="GC-2",
        story=unmoved_boundary,
        story_name="story of a late creator",
    ),
    Guard(
        name="boundary not read after a slot",
        rule="GC-2, UNK-4",
        story=unread_boundary,
        story_name="story of a late creator",
    ),
    Guard(
        name="believes its slot without a pin",
        rule="GC-2, GC-4",
        story=unread_boundary_without_entry,
        story_name="story of a late creator",
    ),
    Guard(
        name="trusts a pin that it shows again",
        rule="GC-4",
        story=hanging_beat,
        story_name="story of a hanging beat",
    ),
    Guard(
        name="plan slot tells nothing of the look",
        rule="FOR-9",
        story=planned_twice,
        story_name="story of a planner beside Java",
    ),
    Guard(
        name="clean slot tells nothing of the look",
        rule="FOR-9",
        story=cleaned_behind,
        story_name="story of a cleaner beside Java",
    ),
    Guard(
        name="cleans unseen by writers",
        rule="CLN-3",
        story=in_scope("X23", commit_log(SeesNoCleans)),
        story_name="scope X23",
    ),
    Guard(
        name="cleans unseen by readers",
        rule="RDL-2",
        story=in_scope("X22", commit_log(SeesNoCleans)),
        story_name="scope X22",
    ),
    Guard(
        name="leases not read",
        rule="CLN-1, RDL-1",
        story=in_scope("X19", storage(SeesNoLeases)),
        story_name="scope X19",
    ),
)
