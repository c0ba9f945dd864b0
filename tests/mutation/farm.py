"""
Runs mutants: a fork each, from inside of a pytest that has imported the shared modules.

There are two ways. `Inside` changes a function that was not called yet: everything is imported and
collected once, and the fork gives the function its changed code. `AtImport` changes code that runs
during an import: all modules that do not lead to the changed one are imported once, and the fork
imports it and collects, so all values computed at import are computed again.
"""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
import resource
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import pytest

from tests.mutation.imports import imported_by, name_of, preload
from tests.mutation.mutants import Mutant, compiled
from tests.mutation.reach import IMPORTED, OPTIONS, ROOT, TESTS, Reach

MEMORY_BYTES_MAX = 12 << 30
NEAR_S = 2.0  # of tests in files that import the module themselves
WAIT_S = 3.0  # of computing, in addition to five times the tests' duration
STUCK_S = 120.0  # wall time, for a mutant that waits and computes nothing
SHARE = 10  # plus this many times the tests' duration: others may be busy

_UNCHANGED = 4  # a fork's status: there was nothing to be changed
_SPENT = (signal.SIGXCPU, signal.SIGKILL)


class Outcome(StrEnum):
    """The result of a mutant."""

    KILLED = "killed"
    TIMEOUT = "timeout"
    SURVIVED = "survived"
    UNREACHED = "unreached"


@dataclass(frozen=True, kw_only=True)
class Job:
    """A mutant and its tests: the near ones first, the others when it lives."""

    module: str
    mutant: Mutant
    inside: bool  # of a function that nothing called while it was imported
    near: tuple[str, ...]
    far: tuple[str, ...]


Report = Callable[[Job, Outcome], None]


class Choice:
    """Chooses the tests of a module's mutants."""

    def __init__(
        self,
        module: str,
        reach: Reach,
        budget_s: float,
        *,
        imported: Callable[[str], bool] | None = None,
    ) -> None:
        self._module, self._budget_s = module, budget_s
        self._at_import = set(reach["lines"][IMPORTED].get(module, ()))
        name = name_of(module)
        files = {test.split("::")[0] for test in reach["seconds"]}
        names = imported or (lambda file: name in imported_by(ROOT / file, {name}))
        self._direct = {file for file in files if names(file)}
        self._tests = self._ranked(reach)

    def _ranked(self, reach: Reach) -> list[tuple[str, float, set[int]]]:
        """
        Return tests with their durations and lines, the most useful first.

        Of the tests that reach the same lines the cheapest is in the first round, the next
        cheapest in the second. Within a round, tests that reach rarely reached lines are first.
        """
        measured: list[tuple[str, float, frozenset[int]]] = [
            (test, took, frozenset(reach["lines"].get(test, {}).get(self._module, ())))
            for test, took in sorted(reach["seconds"].items(), key=lambda entry: entry[1])
        ]
        often = Counter(line for _, _, touched in measured for line in touched)
        rounds: Counter[tuple[bool, frozenset[int]]] = Counter()
        ranked = []
        for test, took, touched in measured:
            kind = test.split("::")[0] in self._direct, touched
            rounds[kind] += 1
            rarity = sum(1 / often[line] for line in touched)
            ranked.append((rounds[kind], -rarity, test, took, set(touched)))
        return [
            (test, took, touched)
            for _, _, test, took, touched in sorted(ranked, key=lambda entry: entry[:3])
        ]

    def job(self, mutant: Mutant) -> Job:
        """Tests that reach the mutant, as many as the budget allows."""
        where = set(mutant.lines)
        inside = mutant.in_function and not where & self._at_import
        near, far = [], []
        for test, took, touched in self._tests:
            direct = test.split("::")[0] in self._direct
            if where & touched or (not inside and (touched or direct)):
                (near if direct else far).append((test, took))
        first, rest = _up_to(near, NEAR_S)
        others, _ = _up_to(rest + far, self._budget_s)
        return Job(
            module=self._module, mutant=mutant, inside=inside, near=tuple(first), far=tuple(others)
        )


def _up_to(
    tests: list[tuple[str, float]], budget_s: float
) -> tuple[list[str], list[tuple[str, float]]]:
    taken: list[str] = []
    for place, (test, took) in enumerate(tests):
        budget_s -= took
        if budget_s < 0 and taken:
            return taken, tests[place:]
        taken.append(test)
    return taken, []


class Changed:
    """Finds one module, and gives it other code."""

    def __init__(self, name: str, code: CodeType) -> None:
        self._name, self._code = name, code

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        return importlib.util.spec_from_loader(name, self, origin=self._code.co_filename)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = self._code.co_filename
        exec(self._code, module.__dict__)


class Farm(ABC):
    """The common part of both ways: a fork, its limits, and the result."""

    def __init__(self, jobs: list[Job], seconds: dict[str, float], report: Report) -> None:
        self.jobs = jobs
        self.report = report
        self._seconds = seconds
        self._killers: dict[str, int] = {}  # by how many they killed; they pass unchanged
        self._unsound: set[str] = set()
        self._timely: set[str] = set()

    @abstractmethod
    def change(self, job: Job, code: CodeType) -> bool:
        """Replace the code in the fork; return False if no function has the old code."""

    @abstractmethod
    def test(self, session: pytest.Session, tests: tuple[str, ...], killer: int) -> int:
        """In the fork: 0 when all pass, else the first to fail is written to ``killer``."""

    def play(self, session: pytest.Session) -> None:
        """
        Run every job; a test that also fails unchanged kills no mutant, and is left out afterwards.
        """
        for job in self.jobs:
            outcome = Outcome.UNREACHED
            known = [test for test in job.far if test in self._killers]
            near = sorted((*known, *job.near), key=lambda test: -self._killers.get(test, 0))
            far = [test for test in job.far if test not in self._killers]
            for tests in (near, far):
                outcome = self._seen_by(session, job, tests) or outcome
                if outcome not in {Outcome.SURVIVED, Outcome.UNREACHED}:
                    break
            self.report(job, outcome)

    def _seen_by(self, session: pytest.Session, job: Job, tests: list[str]) -> Outcome | None:
        """Return the result of a mutant with tests that pass without it; None for no tests."""
        while sound := tuple(test for test in tests if test not in self._unsound):
            outcome, culprit = self._run(session, job, sound)
            if outcome is Outcome.TIMEOUT and job.module not in self._timely:
                # For the first of a module: do its tests take too long without a change?
                if self._run(session, None, sound)[0] is Outcome.TIMEOUT:
                    raise RuntimeError(f"tests take too long unchanged: {job.module}")
                self._timely.add(job.module)
            if not culprit:
                return outcome
            if culprit not in self._killers:
                if self._run(session, None, (culprit,))[0] is not Outcome.SURVIVED:
                    print(f"left out, it fails unchanged: {culprit}", file=sys.stderr, flush=True)
                    self._unsound.add(culprit)
                    continue
                self._killers[culprit] = 0
            self._killers[culprit] += 1
            return outcome
        return None

    def _run(
        self, session: pytest.Session, job: Job | None, tests: tuple[str, ...]
    ) -> tuple[Outcome, str]:
        """
        Return the result of a mutant, or of no change, and the test that failed; empty for none.
        """
        code = None
        if job is not None:
            source = (ROOT / job.module).read_text(encoding="utf-8")
            try:
                code = compiled(source, job.mutant.number, str(ROOT / job.module))
            except SyntaxError:  # the author of such a change sees that at once
                return Outcome.KILLED, ""
        takes_s = sum(self._seconds.get(test, 1.0) for test in tests)
        limit = int(WAIT_S + 5 * takes_s)
        killer, mouth = os.pipe()
        child = os.fork()
        if child == 0:
            status = 3
            try:
                os.setsid()
                resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
                resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
                if job is not None and code is not None and not self.change(job, code):
                    os._exit(_UNCHANGED)
                status = self.test(session, tests, mouth)
            finally:
                os._exit(status)
        os.close(mouth)
        outcome = _awaited(child, STUCK_S + SHARE * takes_s)
        with os.fdopen(killer, "rb") as killed_by:
            return outcome, killed_by.read().decode() if outcome is Outcome.KILLED else ""


class Inside(Farm):
    """Changed functions; their tests are already collected."""

    def __init__(self, jobs: list[Job], seconds: dict[str, float], report: Report) -> None:
        super().__init__(jobs, seconds, report)
        self._items: dict[str, pytest.Item] = {}
        self._functions: dict[tuple[str, str, int], list[FunctionType]] = {}
        self._caches: list[functools._lru_cache_wrapper[object]] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._items = {item.nodeid: item for item in session.items}
        modules = {str(ROOT / job.module) for job in self.jobs}
        for thing in gc.get_objects():
            if isinstance(thing, FunctionType) and thing.__code__.co_filename in modules:
                self._functions.setdefault(_place(thing.__code__), []).append(thing)
            elif isinstance(thing, functools._lru_cache_wrapper):
                self._caches.append(thing)
        gc.freeze()
        self.play(session)
        return True

    def change(self, job: Job, code: CodeType) -> bool:
        changed = 0
        for inner in _codes(code):
            for function in self._functions.get(_place(inner), ()):
                function.__code__ = inner
                changed += 1
        for cache in self._caches:
            cache.cache_clear()
        return changed > 0

    def test(self, session: pytest.Session, tests: tuple[str, ...], killer: int) -> int:
        items = [self._items[test] for test in tests if test in self._items]
        return _run_items(session, items, killer)


def _place(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Of all functions in a module, methods and inner ones, too."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


class AtImport(Farm):
    """Changed modules, imported by tests that are collected then."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> bool:
        preload({name_of(job.module) for job in self.jobs})
        gc.freeze()
        self.play(session)
        return True

    def change(self, job: Job, code: CodeType) -> bool:
        if name_of(job.module) in sys.modules:
            return False
        sys.meta_path.insert(0, Changed(name_of(job.module), code))  # type: ignore[arg-type]
        return True

    def test(self, session: pytest.Session, tests: tuple[str, ...], killer: int) -> int:
        # A file at a time: its imports run again here, and most mutants die in the first.
        for file in dict.fromkeys(test.split("::")[0] for test in tests):
            session.config.args = [file]
            _give_fixtures_again(session)
            session.perform_collect()
            items = {item.nodeid: item for item in session.items}
            mine = [items[test] for test in tests if test in items]
            if _run_items(session, mine, killer):
                return 1
        return 0


def _give_fixtures_again(session: pytest.Session) -> None:
    """Fixtures of a conftest belong to the folder's node, and each collection makes its own."""
    plugins = session.config.pluginmanager
    fixtures = plugins.get_plugin("funcmanage")
    for name, plugin in plugins.list_name_plugin():
        if plugin is not None and name.endswith("conftest.py"):
            fixtures.pytest_plugin_registered(plugin=plugin, plugin_name=name)


def _run_items(session: pytest.Session, items: list[pytest.Item], killer: int) -> int:
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            os.write(killer, item.nodeid.encode()[:4096])
            return 1
    return 0


def _awaited(child: int, wait_s: float) -> Outcome:
    """A fork's end; one that computed for too long was ended by the limit it runs under."""
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            if os.WIFSIGNALED(status) and os.WTERMSIG(status) in _SPENT:
                return Outcome.TIMEOUT
            if os.WIFEXITED(status) and os.WEXITSTATUS(status) == _UNCHANGED:
                return Outcome.UNREACHED
            return Outcome.SURVIVED if status == 0 else Outcome.KILLED
        time.sleep(0.005)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return Outcome.TIMEOUT


def _has_conftest(folder: str) -> bool:
    return (ROOT / folder / "conftest.py").is_file()


def farm(jobs: list[Job], reach: Reach, report: Report, said: Path) -> int:
    """Run jobs of one way in this process; return 0 when all ran, else ``said`` has the reason."""
    inside = jobs[0].inside
    plugin = (Inside if inside else AtImport)(jobs, reach["seconds"], report)
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
    files = {test.split("::")[0] for job in jobs for test in (*job.near, *job.far)}
    brief = "--tb=native"  # the failures of killed mutants are not read
    # A conftest loaded at the start would import modules that forks change: forks load it instead.
    start = sorted(files) if inside else [folder for folder in TESTS if not _has_conftest(folder)]
    status = pytest.main([*OPTIONS, brief, *start], plugins=[plugin])
    wanted = pytest.ExitCode.OK if inside else pytest.ExitCode.NO_TESTS_COLLECTED
    return 0 if status == wanted else 1
