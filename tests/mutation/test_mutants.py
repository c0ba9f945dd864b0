"""The tool itself: its changes, its exclusions, and the tests it chooses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation.exclusions import RULES, kept_equivalents
from tests.mutation.farm import Choice
from tests.mutation.groups import BATCHES, CONCURRENCY, groups
from tests.mutation.imports import apart_from
from tests.mutation.mutants import compiled, mutants_of
from tests.mutation.reach import IMPORTED
from tests.mutation.report import Row, results, table
from tests.mutation.run import sampled, stale_equivalents

ROOT = Path(__file__).resolve().parent.parent.parent


def changes(source: str) -> list[str]:
    return [m.after for m in mutants_of("m.py", source) if m.excluded is None]


@pytest.mark.parametrize(
    ("source", "after"),
    [
        ("x = a < b", ["x = a <= b"]),
        ("x = a is b", ["x = a is not b"]),
        ("x = a in b", ["x = a not in b"]),
        ("x = a and b", ["x = b", "x = a", "x = a or b"]),
        ("x = a + b", ["x = a - b"]),
        ("x = -a", ["x = a"]),
        ("x = not a", ["x = a"]),
        ("x = 3", ["x = 4"]),
        ("x = True", ["x = False"]),
        ("x = 'ab'", ["x = '~ab'"]),
        ("x = max(a)", ["x = min(a)"]),
        ("x = pc.less(a, b)", ["x = pc.less_equal(a, b)"]),
        ("x = np.zeros(a)", ["x = np.ones(a)"]),
        ("x = a.decode(b, 'c')", ["x = a.decode(b, '~c')"]),
        ("x = (a, b, a)", ["x = (b, b, a)", "x = (a, a, a)", "x = (a, b, b)"]),
        ("{1: a, 2: b}", ["{1: b, 2: b}", "{1: a, 2: a}", "{2: a, 2: b}", "{1: a, 3: b}"]),
        ("x = {a, b}", ["x = {b}", "x = {a}"]),
        ("if a: pass", ["if not a"]),
        ("x.y = a", ["pass"]),
        ("x += a", ["pass", "x -= a"]),
        ("f(a)", ["pass"]),
        ("for x in a:\n    break", ["continue"]),
        ("def f():\n    return a", ["return None"]),
        ("raise E('no', kind='k')", ["pass", "raise E('no', kind='~k')"]),
    ],
)
def test_each_operator_changes_one_thing(source: str, after: list[str]):
    assert sorted(changes(source)) == sorted(after)


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ('"""Says what it is."""', "docstring"),
        ("x: 'str'", "annotation"),
        ("@dataclass(frozen=True)\nclass C: pass", "decorator"),
        ("assert a < b", "assertion"),
        ("__all__ = ['f']", "exports"),
        ("try: pass\nexcept E: raise F('no')", "error text"),
        ("x = 'three words here'", "prose"),
        ("x = f'these three words {here}'", "prose"),
        ("emit('x', advice='set it')", "advice"),
        ("Verdict = Clean | Refused", "type only"),
        ("zip(a, b, strict=True)", "strictness"),
        ("x = a.decode('utf-8')", "codec"),
        ("x = np.zeros(0, a)", "empty"),
    ],
)
def test_each_rule_leaves_its_place_alone(source: str, rule: str):
    assert rule in {mutant.excluded for mutant in mutants_of("m.py", source)}


def test_a_changed_module_is_the_module_with_that_change():
    source = "def dead(silence: int) -> bool:\n    return silence > 2\n"
    results = {}
    for mutant in mutants_of("m.py", source):
        if mutant.excluded is None:
            module: dict[str, object] = {}
            exec(compiled(source, mutant.number, "m.py"), module)
            results[mutant.after] = module["dead"](2), module["dead"](3)
    assert results == {
        "return None": (None, None),
        "return silence >= 2": (True, True),
        "return silence > 3": (False, False),
    }


def test_keys_stay_when_lines_move():
    source = "def f(a):\n    return a < 1\n"
    keys = [mutant.key for mutant in mutants_of("m.py", source)]
    assert [mutant.key for mutant in mutants_of("m.py", "\n\n# more\n" + source)] == keys
    assert len(set(keys)) == len(keys)


def test_a_second_change_that_reads_the_same_is_numbered():
    keys = [mutant.key for mutant in mutants_of("m.py", "f(a)\nf(a)\n")]
    assert keys == ["m.py - | f(a) => pass", "m.py - | f(a) => pass #2"]


def test_every_kept_equivalent_names_a_mutant():
    assert stale_equivalents() == []


def test_every_kept_equivalent_has_a_reason():
    assert all(kept_equivalents().values())


def test_every_rule_and_every_step_of_a_commit_is_in_one_group():
    paths = [path for several in groups().values() for path in several]
    expected = {
        file.relative_to(ROOT).as_posix()
        for folder in ("timeline/rules", "filegroups/merge", "filegroups/keys", "timeline/commit")
        for file in (ROOT / folder).glob("*.py")
        if file.name != "__init__.py"
    }
    assert len(paths) == len(set(paths))
    assert set(paths) == {*expected, *BATCHES, *CONCURRENCY, "timeline/commit_log.py"}


def test_modules_imported_before_the_forks_do_not_import_the_changed_module():
    graph = {
        "p": set(),
        "p.changed": {"p"},
        "p.near": {"p", "p.changed"},
        "p.far": {"p", "p.near"},
        "p.apart": {"p"},
        "q": {"p.far"},
        "q.inside": set(),
    }
    assert apart_from({"p.changed"}, graph) == ["p", "p.apart"]
    assert apart_from({"p.changed", "p.apart"}, graph) == ["p"]


def test_a_sample_is_the_same_for_a_seed():
    mutants = mutants_of("m.py", "\n".join(f"x{n} = {n}" for n in range(50)))
    first = sampled(mutants, 10, 1)
    assert len(first) == 10
    assert sampled(mutants, 10, 1) == first
    assert sampled(mutants, 10, 2) != first
    assert first < sampled(mutants, 20, 1)
    assert len(sampled(mutants, 0, 1)) == 50


def test_tests_that_execute_the_line_are_chosen_and_different_ones_run_first():
    module = "timeline/heartbeat.py"
    lines = {
        IMPORTED: {},
        "t.py::all": {module: [1, 2, 3]},
        "t.py::same, and slower": {module: [1, 2, 3]},
        "t.py::rare": {module: [2]},
        "t.py::elsewhere": {module: [3]},
    }
    seconds = {"t.py::all": 0.1, "t.py::same, and slower": 0.2, "t.py::rare": 0.3}
    reach = {"lines": lines, "seconds": {**seconds, "t.py::elsewhere": 0.1}}
    [mutant] = [
        m for m in mutants_of(module, "def f(a):\n    return a\n") if m.operator == "returned"
    ]
    job = Choice(module, reach, 10.0, imported=lambda file: False).job(mutant)
    assert (job.near, job.inside) == ((), True)
    assert job.far == ("t.py::all", "t.py::rare", "t.py::same, and slower")


def test_the_table_counts_timeouts_as_killed():
    row = Row(group="g", name="m.py", all=9, excluded=3, killed=6, timeouts=1, survived=1)
    assert row.score == 87.5
    assert table([row]).splitlines()[2:] == [
        "| **g** | 9 | 8 | 6 | 1 | 1 | 87.5 % |",
        "| m.py | 9 | 8 | 6 | 1 | 1 | 87.5 % |",
    ]


def test_the_kept_page_names_the_commit_it_describes():
    row = Row(group="g", name="m.py", all=9, excluded=3, killed=7, timeouts=1, survived=0)
    page = results([row], {"docstring": 3}, RULES, "Of one state.")
    assert "Of one state." in page.splitlines()
    assert "| m.py | 9 | 8 | 7 | 1 | 0 | 100.0 % |" in page.splitlines()
    assert "| docstring | 3 | explains, does nothing |" in page.splitlines()
