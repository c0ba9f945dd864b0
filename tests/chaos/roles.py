"""
The actors of a chaos run: writers, service workers and readers, each a process of its own.

Run as ``python -m tests.chaos.process ROLE NAME FOLDER``, under a clock that may jump. All of them
work until the folder has a file named ``stop``. They log a ``violation`` for each answer of the
engine, and each visible row, that must not exist.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

import hoodoo
from filegroups.schema.schema import COMMIT_TIME_COLUMN, KEY_COLUMN
from hoodoo.services import services_of
from tests.chaos.journal import Journal, events_of
from tests.chaos.mutants import break_engine
from tests.chaos.setup import RETAINED, Setup
from tests.chaos.work import NUMBERS, Op
from tests.history_lines import read_line
from timeline.errors import ClockRefusedError, HoodooError, OutcomeUnknownError, Reaction
from timeline.rollback.resolve_unknown import WriteOutcome

#: After such an error a client may try again, as a new write; nothing of the old one exists.
AGAIN = (Reaction.REDO, Reaction.REOPEN, Reaction.WAIT, Reaction.STOP)
RESOLVED_S_MAX = 180.0
PINS = 3
READ_EVERY_S = 0.7

Answer = TypeVar("Answer")


def main() -> None:
    """Run one role."""
    role, name, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    setup = Setup.load(folder)
    break_engine(setup.mutant)
    journal = Journal(folder / f"{name}.ops.jsonl")
    journal.log("begin", pid=os.getpid())
    place = Place(name=name, folder=folder, setup=setup, journal=journal)
    {"write": _write, "serve": _serve, "read": _read}[role](place)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The folder, table and journal of a process."""

    name: str
    folder: Path
    setup: Setup
    journal: Journal

    def stops(self) -> bool:
        """Whether the run asked it to end."""
        return (self.folder / "stop").exists()

    def open(self) -> dict[str, hoodoo.Table]:
        """Every table of the run."""
        found = {}
        for table, address in self.setup.tables.items():
            properties = {
                **self.setup.properties[table],
                "hoodie.write.application.id": self.name,
            }
            found[table] = self.insist(partial(hoodoo.open_table, address, properties=properties))
        return found

    def insist(self, call: Callable[[], Answer]) -> Answer:
        """Try again as long as it may help."""
        end = time.monotonic() + RESOLVED_S_MAX
        while True:
            try:
                return call()
            except HoodooError as error:
                if time.monotonic() > end or not may_repeat(error):
                    self.broken(error)
                    raise SystemExit(3) from error
                time.sleep(0.2)

    def broken(self, error: HoodooError) -> None:
        """An error that faults do not excuse: the run fails by it."""
        self.journal.log("violation", what=f"{type(error).__name__} ({error.kind}): {error}")


def may_repeat(error: HoodooError) -> bool:
    """Whether the world's faults explain an error and a new attempt is allowed."""
    return error.reaction in AGAIN or isinstance(error, ClockRefusedError)


# ---------------------------------------------------------------- writers


def _write(place: Place) -> None:
    setup = place.setup
    writer = int(place.name.rpartition("-")[2])
    tables = place.open()
    number, open_op = _resumed(place, writer)
    if open_op is not None:  # a predecessor was killed before its answer
        _resolve(place, tables, open_op, instant=None)
    while not place.stops():
        number += 1
        op = Op.of(setup.seed, number, tuple(setup.tables))
        _attempt(place, tables[op.table], tables, op)


def _resumed(place: Place, writer: int) -> tuple[int, Op | None]:
    """The number of the newest operation in the journal, and the operation if it is open."""
    number, is_open = writer * NUMBERS, False
    for event in events_of(place.folder / f"{place.name}.ops.jsonl"):
        if "op" in event:
            number = event["op"]
            is_open = event["event"] not in ("ok", "fail")
    if not is_open:
        return number, None
    return number, Op.of(place.setup.seed, number, tuple(place.setup.tables))


def _attempt(place: Place, table: hoodoo.Table, tables: dict[str, hoodoo.Table], op: Op) -> None:
    """One operation up to its answer. A refused one stays refused: the next has another number."""
    try:
        write = _prepared(table, op, lambda **more: place.journal.log("invoke", **more))
    except HoodooError as error:  # nothing was begun
        if not may_repeat(error):
            place.broken(error)
        time.sleep(0.1)
        return
    try:
        result = write()
    except OutcomeUnknownError as error:
        instant = error.fields.get("requested_time")
        place.journal.log("unknown", op=op.number, instant=instant, error=error.kind)
        _resolve(place, tables, op, instant=instant)
    except HoodooError as error:
        if not may_repeat(error):
            place.broken(error)
        instant = error.fields.get("requested_time")
        place.journal.log("fail", op=op.number, instant=instant, error=error.kind)
        time.sleep(0.2)  # on a full disk, say
    else:
        place.journal.log("ok", op=op.number, instant=result.requested_time)


def _prepared(
    table: hoodoo.Table, op: Op, log: Callable[..., None]
) -> Callable[[], hoodoo.CommitResult]:
    """The write of an operation; reads its input now and logs it."""
    if not op.adds:
        log(op=op.number)
        return lambda: table.upsert(op.rows(), batch_id=op.batch_id)
    wanted: Any = [("id", "in", list(op.keys))]
    state = table.current_state()
    before = state.to_arrow(filter=wanted, partitions=[op.path], with_hoodie_columns=True)
    versions = zip(
        before[KEY_COLUMN].to_pylist(), before[COMMIT_TIME_COLUMN].to_pylist(), strict=True
    )
    log(op=op.number, reads=list(versions))
    reads = state.reads(filter=wanted, partitions=[op.path])
    rows = op.rows(before)
    return lambda: table.upsert(rows, batch_id=op.batch_id, reads=reads)


def _resolve(place: Place, tables: dict[str, hoodoo.Table], op: Op, *, instant: str | None) -> None:
    """Resolve its outcome: by asking about its instant, or by repeating its batch."""
    table = tables[op.table]
    end = time.monotonic() + RESOLVED_S_MAX
    why = ""
    while time.monotonic() < end:
        try:
            if instant is not None and op.number % 2 == 0:
                found = table.resolve(instant)
                if found.outcome is WriteOutcome.RUNNING:
                    why = found.text
                    time.sleep(0.3)
                    continue
                answer = "ok" if found.outcome is WriteOutcome.PUBLISHED else "fail"
                place.journal.log(answer, op=op.number, instant=instant)
                return
            place.journal.log("repeat", op=op.number)
            write = _prepared(table, op, lambda **_: None)
            place.journal.log("ok", op=op.number, instant=write().requested_time)
        except HoodooError as error:
            if not may_repeat(error) and not isinstance(error, OutcomeUnknownError):
                place.broken(error)
                return
            why = f"{error.kind}: {error}"
            time.sleep(0.3)
        else:
            return
    place.journal.log("violation", what=f"{op.batch_id} has no known outcome: {why}")


# ---------------------------------------------------------------- services


def _serve(place: Place) -> None:
    tables = place.open()
    for table in tables.values():
        place.insist(table._register_writer)  # as every worker does
    services = {name: services_of(table.properties) for name, table in tables.items()}
    while not place.stops():
        for name, table in tables.items():
            for service in services[name]:
                if place.stops():
                    return
                try:
                    result = service.run_once(table.context)
                except HoodooError as error:
                    if not may_repeat(error) and not isinstance(error, OutcomeUnknownError):
                        place.broken(error)
                    place.journal.log("refused", service=service.name, error=error.kind)
                    time.sleep(0.1)
                    continue
                if result is not None:
                    place.journal.log("served", service=service.name, table=name)
        time.sleep(0.2)


# ---------------------------------------------------------------- readers


@dataclass(slots=True, kw_only=True)
class Pin:
    """A state that is held, and the rows it had when it was read first."""

    table: str
    since: str
    held: Any
    rows: pa.Table
    reads: int = 1


def _read(place: Place) -> None:
    """Read new states, and old ones again as long as retention promises their files."""
    tables = place.open()
    chance = random.Random(f"{place.setup.seed}-{place.name}-{os.getpid()}")
    pins: list[Pin] = []
    while not place.stops():
        time.sleep(READ_EVERY_S)
        if len(pins) < PINS:
            name = chance.choice(list(tables))
            pin = _pinned(place, name, tables[name])
            if pin is not None:
                pins.append(pin)
            continue
        pin = chance.choice(pins)
        rows = _rows_of(place, tables[pin.table], pin)
        pin.reads += 1
        if rows is None or pin.reads > 2 * PINS:
            pins.remove(pin)
        elif not rows.equals(pin.rows):
            place.journal.log("violation", what=f"{pin.table} as of {pin.since} reads otherwise")
            pins.remove(pin)
        else:
            place.journal.log("read_again", table=pin.table)


def _pinned(place: Place, name: str, table: hoodoo.Table) -> Pin | None:
    try:
        held = table.current_state()
    except HoodooError as error:
        if not may_repeat(error):
            place.broken(error)
        return None
    since = held.snapshot.newest_completion
    if since is None:
        return None
    pin = Pin(table=name, since=since, held=held, rows=pa.table({}))
    rows = _rows_of(place, table, pin)
    if rows is None:
        return None
    pin.rows = rows
    versions = list(
        zip(rows[KEY_COLUMN].to_pylist(), rows[COMMIT_TIME_COLUMN].to_pylist(), strict=True)
    )
    # A file for each process: the next one does not continue in a line that a kill tore.
    path = place.folder / f"{place.name}-{os.getpid()}.{name}.history.jsonl"
    with path.open("a") as out:
        out.write(read_line(f"{place.name}-{len(versions)}", versions, at=since, full=True))
    place.journal.log("read", table=name)
    return pin


def _rows_of(place: Place, table: hoodoo.Table, pin: Pin) -> pa.Table | None:
    """Its rows; None when it is too old to be promised, or the world is at fault."""
    try:
        return pin.held.to_arrow(with_hoodie_columns=True).sort_by(KEY_COLUMN)
    except HoodooError as error:
        newer = _newer(table, pin)
        if newer is not None and newer < RETAINED and error.reaction is not Reaction.WAIT:
            what = f"{pin.table} as of {pin.since} gone after {newer} commits: {error}"
            place.journal.log("violation", what=what)
        return None


def _newer(table: hoodoo.Table, pin: Pin) -> int | None:
    """How many writes completed since; None where the world keeps that from us."""
    try:
        done = table.snapshot.active.completed_writes
    except HoodooError as error:
        if not may_repeat(error):
            raise
        return None
    return sum((one.completion_time or "") > pin.since for one in done)
