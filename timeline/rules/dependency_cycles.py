"""
Cycles of dependencies between transactions: proof that no serial order explains a run.

Most runs have none, and most edges lead forward in the order of commits. So edges are first
compared with that order, in whole columns; only where one leads backward is the graph searched
for strongly connected components (Tarjan, without recursion), in time linear in its edges.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from timeline.rules.coded_run import Numbers

__all__ = ["Cycle", "Dependency", "Edges", "find_cycles"]


class Dependency(Enum):
    """Why one transaction comes before another."""

    WW = "ww"  # wrote the version before the other's
    WR = "wr"  # wrote the version that the other read
    RW = "rw"  # read a version that the other wrote over


_KINDS = tuple(Dependency)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """Transactions each of which comes before the next, the last one before the first."""

    nodes: tuple[int, ...]
    kinds: tuple[Dependency, ...]

    @property
    def phenomenon(self) -> str:
        """Adya's name."""
        overwritten = sum(kind is Dependency.RW for kind in self.kinds)
        if overwritten:
            return "G-single" if overwritten == 1 else "G2"
        return "G1c" if Dependency.WR in self.kinds else "G0"

    @property
    def is_skew(self) -> bool:
        """Whether each read what the next one wrote over, and nothing else binds them."""
        return all(kind is Dependency.RW for kind in self.kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """A graph by its edges; ``stands`` is a place for each node in a supposed serial order."""

    sources: Numbers
    targets: Numbers
    kinds: Numbers  # index in the order of ``Dependency``
    stands: Numbers

    @classmethod
    def none(cls) -> Edges:
        """No edge at all."""
        empty = np.empty(0, np.int64)
        return cls(sources=empty, targets=empty, kinds=empty, stands=empty)

    @classmethod
    def of(cls, found: Mapping[Dependency, tuple[Numbers, Numbers]], stands: Numbers) -> Edges:
        """Each pair once, by its strongest kind (ww before wr before rw); loops are left out."""
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
        return cls(
            sources=sources[first], targets=targets[first], kinds=kinds[first], stands=stands
        )

    @property
    def backward(self) -> npt.NDArray[np.bool_]:
        """The edges that contradict the supposed order; without one there is no cycle."""
        return np.asarray(self.stands[self.sources] >= self.stands[self.targets])


def find_cycles(edges: Edges, nodes: int) -> Iterator[Cycle]:
    """A short cycle of each strongly connected component."""
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
    """The strongly connected component of each node (Tarjan, with a stack of its own)."""
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
    """The nodes of a shortest way inside a component, both ends included."""
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
