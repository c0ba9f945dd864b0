"""A toy table with a known mistake, to show that the simulation kit finds mistakes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import Enum

from tests.simulator.invariants import Violation, check_all
from tests.simulator.ports import ActorPorts
from tests.simulator.scheduler import Actor
from tests.simulator.table_facts import (
    InstantFact,
    ObservedSlotKind,
    ObservedTable,
    SlotFact,
    StatFact,
)
from tests.simulator.world import SimulatedSystem
from timeline.ports.ports import AmbiguousWriteError, ObjectExistsError

FOLDER = "versions"


class Publish(Enum):
    """How a writer puts version n + 1; only RESOLVE is right."""

    PUT = "put"  # overwrites existing content
    CREATE = "create"  # create-if-absent, a lost answer is taken for a failure
    RESOLVE = "resolve"  # create-if-absent, a lost answer is resolved (UNK-1)
    LOCKED_PUT = "locked_put"  # put under a lock with a lease, checked before


def newest(ports: ActorPorts) -> tuple[int, dict[str, list[str]]]:
    names = [entry.name for entry in ports.storage.list(FOLDER)]
    if not names:
        return 0, {}
    return int(names[-1]), json.loads(ports.storage.read(f"{FOLDER}/{names[-1]}"))["rows"]


def publish(ports: ActorPorts, how: Publish, number: int, data: bytes) -> str:
    path = f"{FOLDER}/{number:04}"
    if how in (Publish.PUT, Publish.LOCKED_PUT):
        ports.storage.write(path, data)
        return "ok"
    while True:
        try:
            ports.storage.create(path, data)
            return "ok"
        except ObjectExistsError:
            if ports.storage.read(path) == data:
                return "ok"
            ports.events.sometimes("toy.lost_slot")
            return "lost"
        except AmbiguousWriteError:
            if how is Publish.CREATE:
                return "fail"


def append(ports: ActorPorts, how: Publish, operation: str, key: str) -> str:
    while True:
        number, rows = newest(ports)
        rows[key] = [*rows.get(key, []), operation]
        data = json.dumps({"by": operation, "rows": rows}).encode()
        if how is Publish.LOCKED_PUT:
            with ports.lock.acquire(operation) as lease:
                if newest(ports)[0] != number:
                    continue
                lease.assert_held()
                answer = publish(ports, how, number + 1, data)
        else:
            answer = publish(ports, how, number + 1, data)
        if answer != "lost":
            return answer


def writer(name: str, how: Publish, operations: int = 1) -> Actor:
    def body(ports: ActorPorts) -> None:
        for count in range(operations):
            operation = f"{name}{count}"
            ports.client.invoke(operation, ["k"])
            answer = append(ports, how, operation, "k")
            if answer == "ok":
                ports.client.ok(operation)
            else:
                ports.client.fail(operation)

    return Actor(name=name, body=body)


def make_run(
    how: Publish, *, writers: int = 2, operations: int = 1
) -> tuple[SimulatedSystem, Sequence[Actor]]:
    world = SimulatedSystem(scenario=f"toy-{how.value}")
    return world, [writer("abcd"[index], how, operations) for index in range(writers)]


def read_facts(world: SimulatedSystem) -> ObservedTable:
    slots: list[SlotFact] = []
    instants: list[InstantFact] = []
    rows = {}
    before = None
    for number, path in enumerate(world.paths_below(FOLDER), start=1):
        document = json.loads(world.files[path].data)
        size = len(world.files[path].data)
        stat = StatFact(
            partition_path="", file_id="f", path=path, size_bytes=size, previous_base=before
        )
        before = path
        slots.append(
            SlotFact(
                number=number,
                kind=ObservedSlotKind.COMMIT,
                action="commit",
                requested_time=f"{number * 2:017}",
                completion_time=f"{number * 2 + 1:017}",
                stats=(stat,),
                operations=frozenset({document["by"]}),
            )
        )
        instants.append(
            InstantFact(
                action="commit",
                requested_time=f"{number * 2:017}",
                state="completed",
                completion_time=f"{number * 2 + 1:017}",
                stats=(stat,),
            )
        )
        rows[number] = {key: tuple(operations) for key, operations in document["rows"].items()}
    return ObservedTable(
        slots=tuple(slots),
        instants=tuple(instants),
        files={path: len(entry.data) for path, entry in world.files.items()},
        history=tuple(world.history),
        rows=rows,
    )


def check(world: SimulatedSystem) -> list[Violation]:
    return check_all(read_facts(world))
