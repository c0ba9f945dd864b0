"""Stories of a table that is dropped, and made again in its place, under open handles (S16, F27)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from filegroups.schema.new_table import new_table_properties
from filegroups.table import TableReader, create_table_files
from tests.simulation.engine_kit import (
    LIMITS,
    TOLERATED_MS,
    Job,
    MakeContext,
    client_write,
    events_of,
    open_table,
    outside,
    ports_of,
)
from tests.simulation.family import Story, some_of
from tests.simulation.story_kit import (
    CRASHES,
    PAUSES,
    SILENCE,
    Unjudged,
    opening,
    prepared,
    sliced,
    small,
    some_writer,
)
from tests.simulator.engine_facts import OPERATION_KEY
from tests.simulator.faults import Fault
from tests.simulator.invariants import Violation
from tests.simulator.ports import Actor, ActorPorts, make_ports
from tests.simulator.table_facts import ClientEventKind
from tests.simulator.world import SimulatedSystem
from timeline.codecs.commit_log import decode_slot
from timeline.codecs.instant_avro import decode_commit
from timeline.context import TableContext
from timeline.errors import HoodooError, TableReplacedError
from timeline.model.file_names import SLOTS, TABLE_DESCRIPTOR, TIMELINE, parse_instant_name
from timeline.model.slot import Slot, SlotKind
from timeline.ports.ports import Ports as EngineWorld
from timeline.properties.properties_file import decode_table_descriptor
from timeline.properties.setting_enums import CommitLockMode

REFUSED = "sim.refused_as_another"
MADE_ANEW_MS = 20  # no user drops a table and makes another within a millisecond
OWN = "n"  # the partition of the new table's rows
BELOW = (".hoodie/timeline", ".hoodie/.hoodoo", ".hoodie", "a", "b", "c")
UNKNOWN = {Fault.AMBIGUOUS_APPLIED: 2, Fault.AMBIGUOUS_LOST: 2}  # a late request always lands


def dropped(draw: random.Random, name: str) -> Story:
    """
    Writers with the old table open; one more drops it, makes another and writes to it.

    A writer may die between its slot and its check of the table, or never get the answer. Then the
    file that shows its slot may stay: the check ignores it.
    """
    world, _ = prepared(draw.choice((small, sliced))).fresh(name)
    whole = draw.random() < 0.7
    make = opening_surely(draw) if whole else opening(draw)
    most = {**PAUSES, **UNKNOWN} if whole else {**PAUSES, **UNKNOWN, **CRASHES, **SILENCE}
    old = [
        replace(some_writer(draw, one, make, jobs=draw.choice((1, 2, 3))), may_raise=(HoodooError,))
        for one in "AB"
    ]
    return Story(
        world=world,
        facts=Unjudged(world),
        actors=[*old, dropper(draw)],
        faults=some_of(draw, most, chance=0.4, victims=frozenset("AB")),
        judge=partial(judge, whole),
        judged_at_end=False,
    )


def opening_surely(draw: random.Random) -> MakeContext:
    """As ``opening``, but it repeats a request without an answer for a long time."""
    limits = replace(LIMITS, publish_lock=draw.choice(list(CommitLockMode)))

    def make(engine: EngineWorld) -> TableContext:
        return open_table(engine, limits)

    return make


def dropper(draw: random.Random) -> Actor:
    folders = draw.sample(BELOW, len(BELOW))
    jobs = [
        Job(operation=f"D{number}", keys=(f"{OWN}-{number}",))
        for number in range(draw.randint(1, 4))
    ]
    pause_ms = draw.choice((0, 0, 20, 200))

    def body(ports: ActorPorts) -> None:
        engine = ports_of(ports)
        ports.clock.sleep_ms(pause_ms)
        for folder in folders:
            engine.storage.delete_folder(folder)
        engine.storage.delete_folder(".hoodie")  # files that writers left there meanwhile
        ports.clock.sleep_ms(MADE_ANEW_MS)
        made = new_table_properties(
            "t",
            record_key_fields=("id",),
            partition_fields=("part",),
            table_version=9,
        )
        create_table_files(engine, made, LIMITS)
        context = open_table(engine, LIMITS)
        for job in jobs:
            answer = client_write(ports, context, job)
            if isinstance(answer, TableReplacedError):
                ports.events.emit(REFUSED, operation=job.operation)

    return Actor(name="D", body=body)


def judge(whole: bool, world: SimulatedSystem) -> Sequence[object]:
    """
    The new table holds exactly its own rows, and every later writer continues.

    No client got an acknowledgement for a slot in a table that the write was not made for. Files that
    an old writer creates between the drop and its next check are ignored. If nothing was archived yet
    they count by the rule for old tables (GC-7), so the new table's rows have their own partition.
    """
    found = survive(world)
    if not found:
        slots = slots_of(world)
        present = decode_table_descriptor(world.files[TABLE_DESCRIPTOR].data).table_id
        late = [slot for slot in slots if slot.table_id != present]
        own = [slot for slot in slots if slot.table_id == present]
        ok = {one.operation for one in world.history if one.kind is ClientEventKind.OK}
        found = [f"{one} is in no table, but was acknowledged" for one in ok & operations(late)]
        found += lost(world, {one for one in ok & operations(own) if one.startswith("D")})
        if whole:
            found += [f"{one} of the new table was refused" for one in refused(world)]
            found += strangers(world, {slot.instant_time for slot in own})
    return [Violation(invariant="F27", found=text) for text in found]


def survive(world: SimulatedSystem) -> list[str]:
    """Commit until all used slot numbers are passed; return the obstacles."""
    world.now_ms += 4 * TOLERATED_MS
    last = max((slot.number for slot in slots_of(world)), default=0)
    ports = make_ports(world, world.new_actor("survivor", seed=0))
    try:
        context = open_table(ports_of(ports))
        for number in range(last + 1):
            answer = client_write(ports, context, Job(operation=f"S{number}", keys=("s1",)))
            if isinstance(answer, HoodooError):
                return [f"a survivor cannot write: {answer!r}"]
            if context.commit_log.last_own > last:
                return []
    except HoodooError as error:
        return [f"a survivor cannot write: {error!r}"]
    return ["a survivor's slots do not pass those of others"]


def slots_of(world: SimulatedSystem) -> list[Slot]:
    names = world.child_names(SLOTS)
    paths = {int(name): f"{SLOTS}/{name}" for name in names}
    return [decode_slot(world.files[path].data, path=path, number=n) for n, path in paths.items()]


def operations(slots: Sequence[Slot]) -> set[str]:
    return {
        decode_commit(slot.body, path="slot").extra_metadata.get(OPERATION_KEY, "")
        for slot in slots
        if slot.kind is SlotKind.COMMIT
    }


def lost(world: SimulatedSystem, acked: set[str]) -> list[str]:
    """
    Rows of acknowledged writes that the new table does not have.

    Only its own partition is read: an old writer's storage may have left a torn file in another.
    """
    table = TableReader(open_table(outside(world)))
    read = table.to_arrow(columns=["id", "operation"], partitions=[OWN]).to_pylist()
    rows = {(row["id"], row["operation"]) for row in read}
    given = [(one.operation, one.keys) for one in world.history if one.keys]
    wanted = {(key, one) for one, keys in given for key in keys if one in acked}
    return [f"{key} of {one} is lost" for key, one in sorted(wanted - rows)]


def refused(world: SimulatedSystem) -> list[str]:
    """
    Writes to the new table that failed because the table seems to be another one.

    A file that an old writer shows until its last check may fail a write in this way, once.
    """
    return [str(fields["operation"]) for fields in events_of(world, REFUSED)]


def strangers(world: SimulatedSystem, own: set[str]) -> list[str]:
    """Completed instants on the timeline that belong to another table."""
    shown = filter(None, map(parse_instant_name, world.child_names(TIMELINE)))
    return [
        f"the timeline shows {one.requested_time} of another table"
        for one in shown
        if one.completed and one.requested_time not in own
    ]
