"""Cycles of dependencies: their names, one for each knot of a graph, and none where there is none."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoodoo.history_checker.anomalies import Cycle, Dependency, Edges, find_cycles

WW, WR, RW = Dependency.WW, Dependency.WR, Dependency.RW


def edges(*pairs: tuple[int, int], kind: Dependency = WW, nodes: int = 10) -> Edges:
    """Edges of one kind; each node is at the position of its number."""
    return of({kind: list(pairs)}, nodes)


def of(found: dict[Dependency, list[tuple[int, int]]], nodes: int = 10) -> Edges:
    columns = {
        kind: tuple(np.array([pair[at] for pair in pairs], np.int64) for at in (0, 1))
        for kind, pairs in found.items()
    }
    return Edges.of(columns, np.arange(nodes, dtype=np.int64))


def cycles(graph: Edges, nodes: int = 10) -> list[tuple[int, ...]]:
    return [cycle.nodes for cycle in find_cycles(graph, nodes)]


@pytest.mark.parametrize(
    ("kinds", "name", "skew"),
    [
        ((WW, WW), "G0", False),
        ((WW, WR), "G1c", False),
        ((WR, WR), "G1c", False),
        ((RW, WR), "G-single", False),
        ((WW, RW, WW), "G-single", False),
        ((RW, RW), "G2", True),
        ((RW, RW, WR), "G2", False),
        ((RW, RW, RW), "G2", True),
    ],
)
def test_a_cycle_has_the_name_that_its_kinds_give_it(
    kinds: tuple[Dependency, ...], name: str, skew: bool
) -> None:
    cycle = Cycle(nodes=tuple(range(len(kinds))), kinds=kinds)
    assert (cycle.phenomenon, cycle.is_skew) == (name, skew)


def test_a_pair_is_kept_once_with_its_strongest_kind() -> None:
    graph = of({RW: [(1, 2), (3, 4)], WR: [(1, 2), (2, 3)], WW: [(2, 3), (0, 1)]})
    found = zip(graph.sources, graph.targets, graph.kinds, strict=True)
    assert [tuple(map(int, edge)) for edge in found] == [
        (0, 1, 0),
        (1, 2, 1),
        (2, 3, 0),
        (3, 4, 2),
    ]


def test_no_transaction_precedes_itself() -> None:
    assert len(edges((1, 1), (2, 2)).sources) == 0


def test_an_edge_to_the_same_place_or_below_leads_backward() -> None:
    graph = Edges.of(
        {WW: (np.array([0, 1, 2]), np.array([1, 2, 0]))}, np.array([5, 5, 6], np.int64)
    )
    assert graph.backward.tolist() == [True, False, True]


@pytest.mark.parametrize(
    "graph",
    [
        Edges.none(),
        edges((0, 1), (1, 2), (0, 2)),
        edges((2, 1)),  # backward, and no way back
        edges((2, 1), (1, 0), (2, 0)),
        edges((0, 3), (3, 1), (0, 1), (1, 2)),
    ],
    ids=["nothing", "forward", "one backward", "all backward", "a diamond"],
)
def test_without_backward_edges_there_is_no_cycle(graph: Edges) -> None:
    assert cycles(graph) == []


def test_a_cycle_starts_at_the_target_of_its_backward_edge() -> None:
    graph = of({WR: [(1, 4)], RW: [(4, 7), (7, 1)]})
    [cycle] = find_cycles(graph, 10)
    assert (cycle.nodes, cycle.kinds) == ((1, 4, 7), (WR, RW, RW))


def test_the_shortest_cycle_is_reported() -> None:
    assert cycles(edges((0, 1), (1, 2), (2, 3), (3, 0), (0, 3))) == [(0, 3)]


def test_each_component_of_a_graph_is_reported_once() -> None:
    graph = edges((0, 1), (1, 0), (1, 2), (2, 3), (3, 2), (3, 4), (4, 5), (5, 6), (6, 4))
    assert cycles(graph) == [(0, 1), (2, 3), (4, 5, 6)]


def test_a_component_with_two_backward_edges_is_reported_once() -> None:
    assert cycles(edges((0, 1), (1, 0), (1, 2), (2, 1))) == [(0, 1)]


def test_a_backward_edge_between_components_belongs_to_none() -> None:
    assert cycles(edges((5, 6), (6, 5), (5, 1), (1, 2), (2, 1))) == [(1, 2), (5, 6)]


def test_a_component_is_found_below_a_finished_branch() -> None:
    """Two paths start at 0; the first one's end proves nothing about the second."""
    assert cycles(edges((0, 1), (1, 2), (0, 3), (3, 2), (3, 4), (4, 0))) == [(0, 3, 4)]


def test_a_component_that_is_entered_and_exited_is_found() -> None:
    assert cycles(edges((0, 1), (1, 2), (2, 3), (3, 1), (2, 4), (4, 5))) == [(1, 2, 3)]


def test_long_paths_need_no_recursion() -> None:
    count = 5_000
    around = [(at, at + 1) for at in range(count - 1)]
    [cycle] = find_cycles(edges(*around, (count - 1, 0), nodes=count), count)
    assert cycle.nodes == tuple(range(count))


PAIRS = list(itertools.permutations(range(6), 2))


@given(st.lists(st.sampled_from(PAIRS), unique=True, max_size=14))
def test_every_component_of_a_small_graph_has_one_cycle_along_its_edges(
    pairs: list[tuple[int, int]],
) -> None:
    reach = np.zeros((6, 6), bool)
    for source, target in pairs:
        reach[source, target] = True
    for by in range(6):
        reach |= np.outer(reach[:, by], reach[by])
    knots = {
        frozenset(np.flatnonzero(reach[at] & reach[:, at]).tolist())
        for at in range(6)
        if reach[at, at]
    }
    found = cycles(edges(*pairs, nodes=6), 6)
    assert len(found) == len(knots)
    for nodes in found:
        assert sum(set(nodes) <= knot for knot in knots) == 1
        assert set(zip(nodes, [*nodes[1:], nodes[0]], strict=True)) <= set(pairs)
        assert len(set(nodes)) == len(nodes)
