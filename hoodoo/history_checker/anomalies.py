"""Anomalies of a recorded history: lost updates, duplicates, dirty reads, cycles."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hoodoo.history_checker.history import NONE, EncodedHistory, History, Numbers
from timeline.errors import counted

# ---- Cycles of dependencies between transactions prove that no serial order explains a history
# Most histories have no cycle, and most edges go forward in the order of commits. So the search
# first compares whole columns of edges with that order. Only if an edge goes backward, it finds the
# strongly connected components (Tarjan, without recursion), in time linear in the edges.


class Dependency(Enum):
    """Why one transaction precedes another in a serial order."""

    WW = "ww"  # the first one wrote the version before that of the second one
    WR = "wr"  # the first one wrote the version that the second one read
    RW = "rw"  # the first one read a version that the second one replaced


_KINDS = tuple(Dependency)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """Transactions of which each precedes the next, and the last one precedes the first."""

    nodes: tuple[int, ...]
    kinds: tuple[Dependency, ...]

    @property
    def phenomenon(self) -> str:
        """Return Adya's name of the cycle."""
        overwritten = sum(kind is Dependency.RW for kind in self.kinds)
        if overwritten:
            return "G-single" if overwritten == 1 else "G2"
        return "G1c" if Dependency.WR in self.kinds else "G0"

    @property
    def is_skew(self) -> bool:
        """Return whether each one read a version that the next one replaced (only rw edges)."""
        return all(kind is Dependency.RW for kind in self.kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """A graph as edges; ``ranks`` is the position of each node in a supposed serial order."""

    sources: Numbers
    targets: Numbers
    kinds: Numbers  # index in the order of ``Dependency``
    ranks: Numbers

    @classmethod
    def none(cls) -> Edges:
        """Return a graph without edges."""
        empty = np.empty(0, np.int64)
        return cls(sources=empty, targets=empty, kinds=empty, ranks=empty)

    @classmethod
    def of(cls, found: Mapping[Dependency, tuple[Numbers, Numbers]], ranks: Numbers) -> Edges:
        """Keep each pair once, with its strongest kind (ww, then wr, then rw), and drop loops."""
        sources = np.concatenate([pair[0] for pair in found.values()])
        targets = np.concatenate([pair[1] for pair in found.values()])
        kinds = np.concatenate(
            [np.full(len(pair[0]), _KINDS.index(kind)) for kind, pair in found.items()]
        )
        order = np.lexsort((kinds, targets, sources))
        sources, targets, kinds = sources[order], targets[order], kinds[order]
        first = np.ones(len(order), bool)
        first[1:] = (sources[1:] != sources[:-1]) | (targets[1:] != targets[:-1])
        first &= sources != targets
        return cls(sources=sources[first], targets=targets[first], kinds=kinds[first], ranks=ranks)

    @property
    def backward(self) -> npt.NDArray[np.bool_]:
        """Return a mask of the edges against the supposed order; each cycle has one."""
        return np.asarray(self.ranks[self.sources] >= self.ranks[self.targets])


def find_cycles(edges: Edges, nodes: int) -> Iterator[Cycle]:
    """Yield one short cycle of each strongly connected component."""
    backward = edges.backward if len(edges.sources) else np.zeros(0, bool)
    if not backward.any():
        return
    starts = np.searchsorted(edges.sources, np.arange(nodes + 1)).tolist()
    targets, kinds = edges.targets.tolist(), edges.kinds.tolist()
    component = _components(starts, targets, nodes)
    done: set[int] = set()
    for at in np.flatnonzero(backward).tolist():
        source, target = int(edges.sources[at]), targets[at]
        of = component[source]
        if component[target] != of or of in done:
            continue
        done.add(of)
        path = _shortest(starts, targets, component, target, source)
        around = [*path, target]
        yield Cycle(
            nodes=tuple(path),
            kinds=tuple(
                _kind(starts, targets, kinds, one, other)
                for one, other in zip(path, around[1:], strict=True)
            ),
        )


def _components(starts: list[int], targets: list[int], nodes: int) -> list[int]:
    """Return the strongly connected component of each node (Tarjan, with an explicit stack)."""
    index, low = [-1] * nodes, [0] * nodes
    component = [-1] * nodes
    stack: list[int] = []
    counter = components = 0
    for root in range(nodes):
        if index[root] != -1:
            continue
        work = [(root, starts[root])]
        while work:
            node, edge = work.pop()
            if edge == starts[node]:
                index[node] = low[node] = counter
                counter += 1
                stack.append(node)
            elif component[targets[edge - 1]] == -1:
                low[node] = min(low[node], low[targets[edge - 1]])
            descended = False
            while edge < starts[node + 1]:
                other = targets[edge]
                edge += 1
                if index[other] == -1:
                    work.append((node, edge))
                    work.append((other, starts[other]))
                    descended = True
                    break
                if component[other] == -1:
                    low[node] = min(low[node], index[other])
            if descended or low[node] != index[node]:
                continue
            while True:
                member = stack.pop()
                component[member] = components
                if member == node:
                    break
            components += 1
    return component


def _shortest(
    starts: list[int], targets: list[int], component: list[int], source: int, target: int
) -> list[int]:
    """Return the nodes of a shortest path inside a component, both ends included."""
    came_from = {source: source}
    waiting = deque([source])
    while target not in came_from:
        node = waiting.popleft()
        for other in targets[starts[node] : starts[node + 1]]:
            if component[other] == component[node] and other not in came_from:
                came_from[other] = node
                waiting.append(other)
    path = [target]
    while path[-1] != source:
        path.append(came_from[path[-1]])
    return path[::-1]


def _kind(
    starts: list[int], targets: list[int], kinds: list[int], source: int, target: int
) -> Dependency:
    place = targets.index(target, starts[source], starts[source + 1])
    return _KINDS[kinds[place]]


# ---- Anomalies of a recorded history: lost updates, duplicates, dirty and non-repeatable reads
# In the words of Adya's theory, the versions of an item have an order. A read depends on the writer
# of its version, and the writer of the next version depends on the reader. Write skew and other
# anomalies are cycles of such dependencies.
#
# Each check is a sort and some binary searches over whole columns. The work is O(n log n) in the
# number of events, so a history of millions of events takes seconds.

#: How many anomalies of one check are listed; one more entry counts the rest.
_SHOWN_MAX: Final = 100


class AnomalyKind(Enum):
    """The kind of an anomaly."""

    LOST_UPDATE = "lost_update"
    DUPLICATE = "duplicate"
    DIRTY_READ = "dirty_read"
    NON_REPEATABLE_READ = "non_repeatable_read"
    WRITE_SKEW = "write_skew"
    CYCLE = "cycle"
    WRONG_ANSWER = "wrong_answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    """An anomaly: its transactions, its item, and a sentence for people."""

    kind: AnomalyKind
    transactions: tuple[str, ...]
    message: str
    item: str = ""


def find_anomalies(run: History) -> list[Anomaly]:
    """Return the anomalies of a history; at most 100 of each check and a count of the rest."""
    coded = EncodedHistory(run)
    checks = (_answers, _twice, _dirty, _unrepeatable, _lost, _overwritten, _cyclic)
    found = []
    for check in checks:
        of_check = list(check(coded))
        found.extend(of_check[:_SHOWN_MAX])
        if len(of_check) > _SHOWN_MAX:
            more = len(of_check) - _SHOWN_MAX
            kind = of_check[0].kind
            found.append(Anomaly(kind=kind, transactions=(), message=f"and {more} more like these"))
    return found


# ---- the checks


def _answers(run: EncodedHistory) -> Iterator[Anomaly]:
    """Find wrong answers to clients, and batches with more than one commit (I2, I12)."""
    transactions = run.run.transactions
    committed = pc.is_valid(transactions.column("position"))
    lost = pc.and_(pc.equal(transactions.column("answer"), "ok"), pc.invert(committed))
    has_written = pc.is_in(transactions.column("name"), pc.unique(run.run.writes.column("name")))
    for name in transactions.filter(pc.and_(lost, has_written)).column("name").to_pylist():
        yield _anomaly(
            AnomalyKind.LOST_UPDATE, [name], f"{name} was answered ok, and its row is missing"
        )
    wrong = pc.and_(pc.equal(transactions.column("answer"), "fail"), committed)
    for name in transactions.filter(wrong).column("name").to_pylist():
        yield _anomaly(
            AnomalyKind.WRONG_ANSWER, [name], f"{name} was answered fail, and its row exists"
        )
    batches = transactions.filter(pc.and_(committed, pc.is_valid(transactions.column("batch"))))
    counted = batches.group_by("batch").aggregate([("name", "list")])
    several = counted.filter(pc.greater(pc.list_value_length(counted.column("name_list")), 1))
    for one in several.to_pylist():
        names = sorted(one["name_list"])
        yield _anomaly(
            AnomalyKind.DUPLICATE, names, f"batch {one['batch']} was committed by each of {names}"
        )


def _twice(run: EncodedHistory) -> Iterator[Anomaly]:
    """Find items that one read returned more than once."""
    versions = (
        run.run.reads.filter(pc.is_valid(run.run.reads.column("version")))
        .group_by(["name", "item", "place"])
        .aggregate([("version", "count")])
    )
    # A client may read an item twice, but a full read lists each row once.
    full = pa.array([run.names[at] for at in np.flatnonzero(run.full)], pa.string())
    more = pc.greater(versions.column("version_count"), 1)
    rows = versions.filter(pc.and_(more, pc.is_in(versions.column("name"), full)))
    for one in rows.to_pylist():
        place = f" in {one['place']}" if one["place"] else ""
        yield _anomaly(
            AnomalyKind.DUPLICATE,
            [one["name"]],
            f"{one['name']} saw {counted(one['version_count'], 'row')} of it{place}",
            one["item"],
        )


def _dirty(run: EncodedHistory) -> Iterator[Anomaly]:
    """Find reads of versions that were never committed, or only after the snapshot (I3)."""
    there = run.versions != NONE
    writer = np.where(there, run.versions, 0)
    own = run.versions == run.readers
    aborted = (
        there & ~own & ~run.committed[writer] & ~run.early[writer] & ~run.restored_away[writer]
    )
    for row in np.flatnonzero(aborted):
        yield _of_read(run, row, AnomalyKind.DIRTY_READ, "which was never committed")
    at = run.at[run.readers]
    late = there & run.committed[writer] & (at != NONE) & (run.position[writer] > at)
    for row in np.flatnonzero(late):
        yield _of_read(run, row, AnomalyKind.DIRTY_READ, "which was committed after its snapshot")


def _unrepeatable(run: EncodedHistory) -> Iterator[Anomaly]:
    """Find items with two versions in one snapshot, seen by one reader or by two (I4)."""
    # If one key has rows in two partitions, a client may have read either of them.
    other = (run.several[run.items_read] & (run.places == NONE)) | run.undone[run.items_read]
    other |= run.versions == run.readers
    at = run.at[run.readers]
    # Compare a reader without a snapshot only with itself.
    state = np.where(at != NONE, at, -2 - run.readers)
    table = pa.table(
        {
            "state": state[~other],
            "item": run.items_read[~other],
            "version": run.versions[~other],
            "place": run.places[~other],
            "reader": run.readers[~other],
        }
    )
    counted = table.group_by(["state", "item", "place"]).aggregate(
        [("version", "min"), ("version", "max"), ("reader", "min"), ("reader", "max")]
    )
    differ = pc.not_equal(counted.column("version_min"), counted.column("version_max"))
    for one in counted.filter(differ).to_pylist():
        if one["reader_min"] == one["reader_max"] and run.full[one["reader_min"]]:
            continue  # ``_twice`` reports one read of two rows
        names = sorted({run.name(one["reader_min"]), run.name(one["reader_max"])})
        saw = f"{run.name(one['version_min'])} and {run.name(one['version_max'])}"
        yield _anomaly(
            AnomalyKind.NON_REPEATABLE_READ,
            names,
            f"{' and '.join(names)} saw versions {saw} in one snapshot",
            run.items[one["item"]],
        )
    yield from _missing_rows(run)


def _missing_rows(run: EncodedHistory) -> Iterator[Anomaly]:
    """Find items that one full read of a snapshot has and another one lacks."""
    fully = run.full & (run.at != NONE)
    states, counts = np.unique(run.at[fully], return_counts=True)
    mine = fully[run.readers] & (run.versions != NONE) & ~run.undone[run.items_read]
    mine &= ~run.restored_away[run.versions]
    mine = np.flatnonzero(mine)
    state = np.searchsorted(states, run.at[run.readers[mine]])
    seen = np.unique(np.stack([state, run.items_read[mine], run.readers[mine]]), axis=1)
    pairs, readers = np.unique(seen[:2], axis=1, return_counts=True)
    for at, item in pairs[:, readers < counts[pairs[0]]].T:
        names = [run.name(one) for one in np.flatnonzero(fully & (run.at == states[at]))]
        yield _anomaly(
            AnomalyKind.NON_REPEATABLE_READ,
            names,
            f"of {', '.join(names)}, reads of one snapshot, not all saw it",
            run.items[item],
        )


def _lost(run: EncodedHistory) -> Iterator[Anomaly]:
    """Find snapshots without the newest version that was committed by then (I1)."""
    yield from _lost_rows(run)
    for row, version in zip(*_stale(run), strict=True):
        why = f"although {run.name(run.version_writer[version])} wrote it by then"
        yield _of_read(run, row, AnomalyKind.LOST_UPDATE, why)


def _stale(run: EncodedHistory) -> tuple[Numbers, Numbers]:
    """Return the stale reads at a snapshot, and the version that each one should have seen."""
    if not run.run.ordered:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    at = run.snapshot_rank[run.readers]
    judged = (run.at[run.readers] != NONE) & ~run.unsure[run.items_read]
    # A read of an uncommitted version is a dirty read only.
    judged &= (run.versions == NONE) | run.committed[run.versions] | run.early[run.versions]
    rows = np.flatnonzero(judged)
    newest = run.newest_by(run.items_read[rows], at[rows])
    rows, newest = rows[newest != NONE], newest[newest != NONE]
    absent = run.versions[rows] == NONE
    behind = run.rank_read[rows] < run.rank_at(newest)
    stale = np.where(absent, ~run.may_be_gone(newest), behind)
    return rows[stale], newest[stale]


def _lost_rows(run: EncodedHistory) -> Iterator[Anomaly]:
    """Find items that a write created and a later full read lacks."""
    items = np.unique(run.version_item[run.version_in_rows])
    items = items[~run.unsure[items]]
    if not run.run.ordered:
        items = np.setdiff1d(items, run.deleted_items)  # a delete may win or lose
    order = np.argsort(run.readers, kind="stable")
    readers = np.flatnonzero(run.full & (run.at != NONE))
    starts = np.searchsorted(run.readers[order], readers, side="left")
    ends = np.searchsorted(run.readers[order], readers, side="right")
    for reader, start, end in zip(readers, starts, ends, strict=True):
        missing = np.setdiff1d(items, run.items_read[order[start:end]])
        at = np.full(len(missing), run.snapshot_rank[reader])
        newest = run.newest_by(missing, at)
        there = newest != NONE
        there[there] = ~run.may_be_gone(newest[there])
        for item, index in zip(missing[there], newest[there], strict=True):
            by = run.name(run.version_writer[index])
            yield _anomaly(
                AnomalyKind.LOST_UPDATE,
                [by, run.name(reader)],
                f"{by} wrote it, no client deleted it, and {run.name(reader)} does not see it",
                run.items[item],
            )


def _overwritten(run: EncodedHistory) -> Iterator[Anomaly]:
    """Find writers that read a version and replaced a newer one that they did not read (I5)."""
    for row, between in zip(*_overwriting(run), strict=True):
        by = run.name(run.version_writer[between])
        yield _of_read(run, row, AnomalyKind.LOST_UPDATE, f"and overwrote a later write of {by}")


def _overwriting(run: EncodedHistory) -> tuple[Numbers, Numbers]:
    """Return reads by writers of the same item, and the version between the read and the write."""
    own = run.row_of_write(run.items_read, run.readers)
    candidates = np.flatnonzero(
        (own != NONE) & run.committed[run.readers] & (run.versions != run.readers)
    )
    candidates = candidates[run.placed[candidates] & ~run.by_rows[run.items_read[candidates]]]
    between = run.next_version(run.items_read[candidates], run.rank_read[candidates])
    there = between != NONE
    candidates, between = candidates[there], between[there]
    not_mine = run.version_writer[between] != run.readers[candidates]
    return candidates[not_mine], between[not_mine]


def _cyclic(run: EncodedHistory) -> Iterator[Anomaly]:
    """Find cycles of dependencies; a cycle of rw edges only is a write skew."""
    for cycle in find_cycles(_dependencies(run), len(run.names)):
        names = [run.name(one) for one in cycle.nodes]
        kinds = [one.value for one in cycle.kinds]
        path = "".join(f"{name} -{kind}-> " for name, kind in zip(names, kinds, strict=True))
        yield Anomaly(
            kind=AnomalyKind.WRITE_SKEW if cycle.is_skew else AnomalyKind.CYCLE,
            transactions=tuple(names),
            message=f"no serial order: {path}{names[0]} ({cycle.phenomenon})",
        )


def _dependencies(run: EncodedHistory) -> Edges:
    """Return all ww, wr and rw edges, and the rank of each node in a supposed serial order."""
    if not run.run.ordered:
        return Edges.none()
    same = run.version_item[1:] == run.version_item[:-1]
    same &= ~run.unsure[run.version_item[1:]]
    ww = (run.version_writer[:-1][same], run.version_writer[1:][same])
    checked = np.ones(len(run.readers), bool)
    for found in (_overwriting(run), _stale(run)):
        checked[found[0]] = False  # another check reports them
    aborted = ~run.committed
    aborted[np.setdiff1d(np.arange(len(aborted)), run.writers)] = False
    checked &= ~aborted[run.readers]
    seen = checked & (run.versions != NONE) & (run.versions != run.readers)
    seen[seen] = run.committed[run.versions[seen]]
    wr = (run.versions[seen], run.readers[seen])
    sure = checked & run.placed & ~run.unsure[run.items_read]
    rows = np.flatnonzero(sure & (run.versions != run.readers))
    following = run.next_version(run.items_read[rows], run.rank_read[rows])
    rows, following = rows[following != NONE], following[following != NONE]
    rw = (run.readers[rows], run.version_writer[following])
    ranks = np.where(run.committed, 2 * run.position_rank, 2 * run.snapshot_rank + 1)
    return Edges.of({Dependency.WW: ww, Dependency.WR: wr, Dependency.RW: rw}, ranks)


def _anomaly(kind: AnomalyKind, names: list[str], message: str, item: str = "") -> Anomaly:
    text = f"{item}: {message}" if item else message
    return Anomaly(kind=kind, transactions=tuple(names), message=text, item=item)


def _of_read(run: EncodedHistory, row: Any, kind: AnomalyKind, why: str) -> Anomaly:
    reader, version = run.name(run.readers[row]), run.name(run.versions[row])
    saw = f"read the version of {version}" if version != "nobody" else "did not see it"
    return _anomaly(
        kind,
        sorted({reader, version} - {"nobody"}),
        f"{reader} {saw}, {why}",
        run.items[run.items_read[row]],
    )
