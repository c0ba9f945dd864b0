"""
The checks after a chaos run.

They use the operations' own traces in the newest rows and the shipped checkers: the table's
verification, the history of its clients' journals, and the promises I5 to I9 over all files that
an outside observer saw appear and vanish.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

import hoodoo
from hoodoo.configuration import Layers
from hoodoo.services import services_of
from hoodoo.verify.verify import verify_at
from tests.chaos.journal import OpRecord
from tests.chaos.work import PARTITIONS, SHARED, mark_key, own_row, shared_key
from timeline.errors import HoodooError
from timeline.model.file_names import parse_base_file_name

_SHOWN_MAX = 10
_ROUNDS_MAX = 12


def check_rows(
    table: str, rows: pa.Table, operations: Sequence[OpRecord], writers: int
) -> list[str]:
    """
    Compare the newest rows with the answers that clients got.

    Every acknowledged operation exists exactly once, and nothing else does: no failed operation,
    and none without a client.
    """
    mine = [one for one in operations if one.op.table == table]
    done = [one.op for one in mine if one.answer == "ok"]
    found = [f"{one.op.batch_id} was never settled" for one in mine if one.answer is None]
    ids, times = np.unique(rows["id"].to_numpy(), return_counts=True)
    found += [f"{table}: row {key} is there twice" for key in ids[times > 1].tolist()]
    wanted = {own_row(op.number) for op in done}
    there = {key for key in ids.tolist() if key >= own_row(0)}
    found += [f"{table}: {key} was acknowledged and is lost" for key in sorted(wanted - there)]
    found += [
        f"{table}: {key} was never acknowledged, it is there" for key in sorted(there - wanted)
    ]

    counts: dict[int, int] = defaultdict(int)
    totals: dict[int, int] = defaultdict(int)
    for op in done:
        for key in op.keys:
            if op.adds:
                counts[key] += 1
                totals[key] += op.number
            else:  # a writer resolves each operation before the next
                totals[key] = max(totals[key], op.number)
    keys = [shared_key(part, number) for part in range(PARTITIONS) for number in range(SHARED)]
    keys += [mark_key(part, writer) for part in range(PARTITIONS) for writer in range(writers)]
    columns = (rows[name].to_pylist() for name in ("id", "count", "total"))
    shown = {key: (count, total) for key, count, total in zip(*columns, strict=True)}
    for key in keys:
        if shown.get(key) != (counts[key], totals[key]):
            should = (counts[key], totals[key])
            found.append(f"{table}: row {key} shows {shown.get(key)}, the operations make {should}")
    return found


def check_verified(
    table: str, address: str, properties: Mapping[str, str], journals: Sequence[Path]
) -> list[str]:
    """Return the findings of ``hoodoo table verify --history`` with the clients' journals."""
    layers = Layers(code=dict(properties))
    verified = verify_at(address, layers, history=True, journals=journals)
    return [f"{table}: {one.kind} {one.path}: {one.message}" for one in verified.problems]


def clean_up(table: hoodoo.Table) -> None:
    """Run services until nothing is pending, as workers would in the next minutes."""
    table._register_writer()
    for _ in range(_ROUNDS_MAX):
        for service in services_of(table.properties):
            try:
                service.run_once(table.context)
            except HoodooError:
                continue  # a plan whose executor just died is left to the next round
        if not table.snapshot.active.pending:
            return
        time.sleep(0.5)


def leftovers(name: str, table: hoodoo.Table) -> list[str]:
    """Traces of the dead that one clean after their time should have removed."""
    storage = table.context.ports.storage
    snapshot = table.snapshot
    found = [f"pending {one}" for one in snapshot.active.pending]
    found += [f"heartbeat {one}" for one in storage.names(".hoodie/.heartbeat")]
    found += [f"markers {one.name}" for one in storage.list(".hoodie/.temp")]
    for partition in table.view.partition_paths():
        for entry in storage.list(partition):
            base = parse_base_file_name(entry.name)
            if base is not None and not snapshot.is_committed(base.requested_time):
                found.append(f"data file {partition}/{entry.name}")
    more = [f"and {len(found) - _SHOWN_MAX} more"] if len(found) > _SHOWN_MAX else []
    return [f"{name}: left over: {one}" for one in [*found[:_SHOWN_MAX], *more]]
