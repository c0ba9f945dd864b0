"""
Small scopes of the shipped engine, run in every interleaving (``tests.simulator.interleavings``).

A scope has a few actors that do one thing each on a system that is prepared once. Actors take no
commit lock unless the scope says so, and do not pause between attempts. Heartbeats are rare, and a
rollback treats every writer as dead at any moment (HB-4). So only the protocol's own order of
calls remains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from filegroups.table import TableSnapshot
from tableservices.archiving.execute import archive
from tableservices.cleaning.execute import clean
from tableservices.cleaning.plan import CleaningPolicy, CleaningSettings
from tests.simulation import stories_of_metadata as metadata
from tests.simulation import test_compaction as compactions
from tests.simulation import test_engine_archive as archives
from tests.simulation.engine_kit import (
    CLEANING,
    LIMITS,
    Job,
    MakeContext,
    check_files_in_slot_order,
    client_write,
    do_write,
    open_table,
    ports_of,
)
from tests.simulation.family import Prepared
from tests.simulation.story_kit import (
    left_by_the_dead,
    prepared,
    sliced,
    small,
    without_files,
)
from tests.simulator.faults import Fault, Faults
from tests.simulator.interleavings import Coverage, Scene, cover
from tests.simulator.ports import Actor, ActorPorts
from tests.simulator.world import SimulatedSystem
from timeline.context import TableContext
from timeline.errors import HoodooError, SnapshotExpiredError
from timeline.heartbeat import HeartbeatLimits
from timeline.model.commit_metadata import WriteOperation
from timeline.model.file_names import READERS
from timeline.ports.ports import Ports as EngineWorld
from timeline.properties.setting_enums import CommitLockMode
from timeline.reader_lease import pin
from timeline.rollback.rollback import rollback_dead_writers
from timeline.writer_registry import register_process

RARELY_MS = 10**9

AT_ONCE = replace(
    LIMITS,
    publish_lock=CommitLockMode.NONE,
    heartbeat=HeartbeatLimits(interval_ms=RARELY_MS, misses=2),
    retry=replace(LIMITS.retry, pause_base_ms=0, pause_cap_ms=0),
)
KEEPING_ONE = CleaningSettings(commits_retained=1)
LAST_VERSIONS = CleaningSettings(policy=CleaningPolicy.VERSIONS, versions_retained=1)
QUEUED = replace(AT_ONCE, publish_lock=CommitLockMode.LOCK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Impatient(HeartbeatLimits):
    """Treats every writer as dead (HB-4)."""

    @property
    def tolerated_ms(self) -> int:
        return -1


SUSPICIOUS = replace(AT_ONCE, heartbeat=Impatient(interval_ms=RARELY_MS))


@dataclass(frozen=True, kw_only=True)
class Scope:
    """One small scope; ``nightly`` ones take minutes."""

    id: str
    about: str
    clauses: str
    make: Callable[[], Scene]
    faults: Faults | None = None
    nightly: bool = False

    def explore(self, runs_max: int = 200_000) -> Coverage:
        return cover(self.make, faults=self.faults, runs_max=runs_max)


def opened(limits: object = AT_ONCE) -> MakeContext:
    def make(world: EngineWorld) -> TableContext:
        return open_table(world, limits)  # type: ignore[arg-type]

    return make


def writes(
    name: str,
    *keys: str,
    make: MakeContext | None = None,
    kind: WriteOperation | None = None,
    far: bool = False,
) -> Actor:
    """One write, with an answer to its client."""

    def body(ports: ActorPorts) -> None:
        job = Job(operation=name, keys=keys, kind=kind or WriteOperation.UPSERT)
        client_write(ports, (make or opened())(ports_of(ports)), job)

    return Actor(name=name, body=body, shuffled=far)


def acts(
    name: str, act: Callable[[TableContext], object], make: MakeContext | None = None
) -> Actor:
    """A service that may be refused."""

    def body(ports: ActorPorts) -> None:
        try:
            act((make or opened())(ports_of(ports)))
        except HoodooError as error:
            ports.events.emit("sim.refused", who=name, why=str(error))

    return Actor(name=name, body=body)


def sends_batch(name: str, *, asks: bool) -> Actor:
    def body(ports: ActorPorts) -> None:
        job = Job(operation="batch", keys=("a1",), batch_id="source/1")
        if asks:
            ports.client.invoke(job.operation, job.keys)
        try:
            do_write(ports, opened()(ports_of(ports)), job)
        except HoodooError as error:
            ports.events.emit("sim.refused", who=name, why=str(error))

    return Actor(name=name, body=body)


def scene(
    before: Prepared,
    actors: Callable[[], Sequence[Actor]],
    judge: Callable[[SimulatedSystem], Sequence[object]] | None = None,
    begun: Mapping[str, str] | None = None,
) -> Scene:
    world, facts = before.fresh("scope")

    def end(world: SimulatedSystem) -> Sequence[object]:
        return [*facts.check_end(world), *(judge(world) if judge else ())]

    return Scene(
        world=world,
        actors=actors(),
        begun=begun or {},
        check_step=facts.check_step,
        check_end=end,
    )


ONE_DEATH = Faults(budgets={Fault.CRASH_BEFORE: 1})


#: The last call before a writer commits: its data is written.
WRITTEN = "sync_folders a"
#: The call that decides, after all validation.
SLOT = "create .hoodie/.hoodoo/slots"


def overlapping(**begun: str) -> Scene:
    return scene(prepared(small), lambda: [writes("A", "a1"), writes("B", "a1")], begun=begun)


def in_a_queue() -> Scene:
    make = opened(QUEUED)
    return scene(
        prepared(small),
        lambda: [writes("A", "a1", make=make), writes("B", "a1", make=make)],
        begun={"A": WRITTEN, "B": WRITTEN},
    )


def behind_the_dead(commits: int, **begun: str) -> Scene:
    """Two writers on a high-latency store, after commits whose files are missing (PUB-3)."""
    before = prepared(without_files, commits)
    return scene(
        before,
        lambda: [writes("A", "a1", far=True), writes("B", "b1", far=True)],
        check_files_in_slot_order,
        begun,
    )


def suspected(**begun: str) -> Scene:
    return scene(
        prepared(small),
        lambda: [writes("A", "a1"), acts("R", rollback_dead_writers, opened(SUSPICIOUS))],
        begun=begun,
    )


def suspected_with_metadata(**begun: str) -> Scene:
    return scene(
        prepared(metadata.one_slice),
        lambda: [writes("A", "a1"), acts("R", rollback_dead_writers, opened(SUSPICIOUS))],
        begun=begun,
    )


def compacted_metadata(**begun: str) -> Scene:
    """A compaction of the metadata table is planned and executed while a writer commits."""
    return scene(
        prepared(metadata.one_slice),
        lambda: [writes("A", "a1"), acts("K", metadata.compact_metadata)],
        begun=begun,
    )


def helped_with_metadata(**begun: str) -> Scene:
    """Two writers of different file groups: the second one helps the first."""
    return scene(
        prepared(metadata.one_slice),
        lambda: [writes("A", "a1"), writes("B", "b1")],
        check_files_in_slot_order,
        begun,
    )


def two_rollbackers(**begun: str) -> Scene:
    undo = partial(acts, act=rollback_dead_writers, make=opened(SUSPICIOUS))
    return scene(prepared(left_by_the_dead), lambda: [undo("R1"), undo("R2")], begun=begun)


def same_batch() -> Scene:
    return scene(
        prepared(small),
        lambda: [sends_batch("A", asks=True), sends_batch("B", asks=False)],
        begun={"A": WRITTEN},
    )


def planning() -> Scene:
    return scene(
        prepared(compactions.logged, "scope"),
        lambda: [writes("A", "a1"), acts("P", plan_compaction)],
        begun={"A": WRITTEN},
    )


def plan_compaction(context: TableContext) -> None:
    compactions.run_round(context, compactions.SERVICE, compactions.Phase.SCHEDULE, now=True)


def two_executors() -> Scene:
    run_again = compactions.execute_unclaimed
    return scene(
        prepared(compactions.planned, "scope"),
        lambda: [acts("C", run_again), acts("D", run_again)],
        begun={"C": SLOT},
    )


def executor_and_canceller() -> Scene:
    return scene(
        prepared(compactions.planned, "scope"),
        lambda: [acts("C", compactions.execute), acts("D", compactions.call_off)],
        begun={"C": SLOT},
    )


def two_archivers(**begun: str) -> Scene:
    return scene(
        prepared(archives.grown, 3),
        lambda: [acts("X", cut), acts("Y", cut)],
        archives.comebacks,
        begun,
    )


def cut(context: TableContext) -> None:
    archive(context, archives.RULES)


def cut_and_pin() -> Scene:
    """A newcomer shows its pin while the boundary moves."""
    return scene(
        prepared(archives.grown, 3),
        lambda: [acts("X", cut), acts("N", lambda context: register_process(context, {}))],
        archives.comebacks,
    )


def cleaning_and_writing() -> Scene:
    return scene(
        prepared(sliced),
        lambda: [acts("C", lambda context: clean(context, CLEANING)), writes("A", "a1")],
        begun={"C": SLOT, "A": WRITTEN},
    )


def beside_a_cleaner(read: Callable[[ActorPorts], None], until: str) -> Scene:
    """
    A reader that ran up to a call; two writers superseded its rows, a cleaner will delete them.
    """
    return scene(
        prepared(sliced),
        lambda: [
            Actor(name="R", body=read),
            writes("W1", "a1"),
            writes("W2", "a1"),
            acts("C", lambda context: clean(context, KEEPING_ONE)),
        ],
        begun={"R": until, "W1": "", "W2": "", "C": SLOT},
    )


def holding_and_cleaning() -> Scene:
    """A reader is about to lease files that two writers superseded and a cleaner will delete."""

    def read(ports: ActorPorts) -> None:
        context = opened()(ports_of(ports))
        snapshot = context.snapshot()
        try:
            lease = pin(context, snapshot)
        except SnapshotExpiredError:  # the clean was first, and said so
            ports.events.emit("sim.expired")
            return
        with TableSnapshot(context, snapshot, lease) as held:
            held.to_arrow(columns=["id"])

    return beside_a_cleaner(read, READERS)


def listing_and_cleaning() -> Scene:
    """A reader without a lease is about to list files that two writers superseded, as above."""

    def read(ports: ActorPorts) -> None:
        context = opened()(ports_of(ports))
        try:
            rows = TableSnapshot(context, context.snapshot()).to_arrow(columns=["id"])
        except SnapshotExpiredError:
            ports.events.emit("sim.expired")
            return
        assert "a1" in rows["id"].to_pylist(), "RDL-2: the read misses a row"

    return beside_a_cleaner(read, "list a")


def writing_on_cleaned_ground() -> Scene:
    """
    A writer is about to list a partition, and did not see the commit before its begin.

    The cleaner believes that it did, and is about to take the slice before that commit.
    """
    return scene(
        prepared(without_files, 1),
        lambda: [
            writes("A", "a1", far=True),
            writes("W", "b1"),
            acts("C", lambda context: clean(context, LAST_VERSIONS)),
        ],
        begun={"A": "list a", "W": "", "C": SLOT},
    )


SCOPES: tuple[Scope, ...] = (
    Scope(
        id="X1",
        about="two writers of one file group commit",
        clauses="SLOT-1 PUB-3 PUB-4 PUB-5 PUB-7",
        make=partial(overlapping, A=WRITTEN, B=WRITTEN),
    ),
    Scope(
        id="X2",
        about="the same at their slots, one may die",
        clauses="PUB-3 HELP-1 SLOT-5",
        make=partial(overlapping, A=SLOT, B=SLOT),
        faults=ONE_DEATH,
    ),
    Scope(
        id="X3",
        about="the same in the queue, a lease is lost",
        clauses="SLOT-1",
        make=in_a_queue,
        faults=Faults(budgets={Fault.LEASE_LOST: 1}),
    ),
    Scope(
        id="X4",
        about="a writer at its slot, and one at the slot that aborts it",
        clauses="HB-4 RB-1 RB-2 RB-3 RB-4 PUB-6",
        make=partial(suspected, A=SLOT, R=SLOT),
    ),
    Scope(
        id="X5",
        about="two at the slot that aborts the same dead writer",
        clauses="RB-1 RB-5",
        make=partial(two_rollbackers, R1=SLOT, R2=SLOT),
    ),
    Scope(
        id="X6",
        about="two clients with one batch id, one has written",
        clauses="BATCH-1",
        make=same_batch,
    ),
    Scope(
        id="X7",
        about="a log writer commits while a compaction is planned",
        clauses="PLAN-1 PLAN-2 TL-SUCC-1",
        make=planning,
    ),
    Scope(
        id="X8",
        about="two executors of one plan, one at its slot, each treats the other as dead",
        clauses="HB-4 SLOT-5",
        make=two_executors,
    ),
    Scope(
        id="X9",
        about="an executor at its slot, and a canceller of its plan",
        clauses="CMP-1",
        make=executor_and_canceller,
    ),
    Scope(
        id="X10",
        about="two archivers cut",
        clauses="GC-1 GC-2 GC-5",
        make=partial(two_archivers, X=SLOT, Y=SLOT),
        nightly=True,
    ),
    Scope(
        id="X11",
        about="an archiver cuts, a newcomer pins",
        clauses="GC-3 REG-1",
        make=cut_and_pin,
    ),
    Scope(
        id="X12",
        about="a cleaner at its slot, and a writer that commits",
        clauses="CLN-1 CLN-2",
        make=cleaning_and_writing,
    ),
    Scope(
        id="X13",
        about="one writer begins while another is at its slot",
        clauses="BEG-4 BEG-5 TL-SUCC-1",
        make=partial(overlapping, A=SLOT),
    ),
    Scope(
        id="X14",
        about="two at their slots, an answer is lost and its request may land later",
        clauses="UNK-1 UNK-2",
        make=partial(overlapping, A=SLOT, B=SLOT),
        faults=Faults(budgets={Fault.AMBIGUOUS_LATE: 1}),
    ),
    Scope(
        id="X20",
        about="two writers on a high-latency store commit after two commits without files",
        clauses="PUB-3 PAR-1 HELP-1",
        make=partial(behind_the_dead, 2, A="sync_folders a", B="sync_folders b"),
    ),
    Scope(
        id="X21",
        about="the same at their slots, one may die, a request may be lost",
        clauses="PUB-3 PAR-1 HELP-1 UNK-5",
        make=partial(behind_the_dead, 2, A=SLOT, B=SLOT),
        faults=Faults(budgets={Fault.CRASH_BEFORE: 1, Fault.UNAVAILABLE: 1}),
    ),
    Scope(
        id="X19",
        about="a reader about to lease a snapshot of which a cleaner at its slot deletes a file",
        clauses="RDL-1 CLN-1",
        make=holding_and_cleaning,
    ),
    Scope(
        id="X22",
        about="a reader without a lease about to list a snapshot of which a cleaner deletes a file",
        clauses="RDL-2",
        make=listing_and_cleaning,
    ),
    Scope(
        id="X23",
        about="a writer begun behind a commit without a file, whose file a cleaner deletes",
        clauses="CLN-3",
        make=writing_on_cleaned_ground,
    ),
    Scope(
        id="X24",
        about="a writer with a slot about to show it in the metadata table, a rollback, one dies",
        clauses="MDT-4 MDT-7 RB-3 HELP-1",
        make=partial(suspected_with_metadata, A=metadata.AT_ITS_INSTANT),
        faults=ONE_DEATH,
    ),
    Scope(
        id="X25",
        about="two writers of a table with a metadata table at their slots, the first may die",
        clauses="MDT-2 MDT-4 PUB-3 HELP-1 SLOT-5",
        make=partial(helped_with_metadata, A=SLOT, B=SLOT),
        faults=replace(ONE_DEATH, victims=frozenset("A")),
    ),
    Scope(
        id="X26",
        about="a writer at its slot, the rollback about to take its log files there; one may die",
        clauses="MDT-2 MDT-7 RB-1 RB-2 RB-10",
        make=partial(suspected_with_metadata, A=SLOT, R="delete .hoodie/metadata"),
        faults=ONE_DEATH,
    ),
    Scope(
        id="X27",
        about="a writer of a table with a metadata table and a rollback, both at their slots",
        clauses="MDT-2 MDT-4 MDT-7 RB-1 RB-2 RB-3",
        make=partial(suspected_with_metadata, A=SLOT, R=SLOT),
        nightly=True,
    ),
    Scope(
        id="X28",
        about="a compaction of the metadata table at its slot, above a commit; one may die",
        clauses="MDT-4 MDT-8 HELP-1",
        make=partial(compacted_metadata, A=metadata.AT_ITS_INSTANT, K=SLOT),
        faults=ONE_DEATH,
    ),
    Scope(
        id="X29",
        about="a writer and a compaction of the metadata table, both at their slots",
        clauses="MDT-4 MDT-8",
        make=partial(compacted_metadata, A=SLOT, K=SLOT),
        nightly=True,
    ),
    Scope(
        id="X15",
        about="two writers from their begin",
        clauses="BEG-4 BEG-5 TL-REQ-1 PUB-3 PUB-4",
        make=overlapping,
        nightly=True,
    ),
    Scope(
        id="X16",
        about="a writer that has written, and a rollback that treats it as dead",
        clauses="HB-4 RB-10",
        make=partial(suspected, A=WRITTEN),
        nightly=True,
    ),
    Scope(
        id="X17",
        about="two rollbacks of the same dead writer, one may die",
        clauses="RB-5 HELP-1",
        make=two_rollbackers,
        faults=ONE_DEATH,
        nightly=True,
    ),
    Scope(
        id="X18",
        about="two archivers, one may die",
        clauses="GC-2 GC-5",
        make=partial(two_archivers, X=SLOT),
        faults=ONE_DEATH,
        nightly=True,
    ),
)

BY_ID = {scope.id: scope for scope in SCOPES}
