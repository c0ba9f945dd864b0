"""
The lines that each test reaches: one traced run of the tests, kept until a source changes.

Only frames of the modules in question are traced, so the run takes little more than twice its time.
Lines that run in the set-up of a test count for all tests of its file: fixtures are shared.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
TESTS = ("tests/unit/timeline", "tests/unit/tableservices")
QUICK = "not integration and not jvm and not slow and not spark"
OPTIONS = ("-q", "-x", "-p", "no:cacheprovider", "-m", QUICK)
IMPORTED = ""  # lines that run before any test
SOURCES = ""

Reach = dict[str, Any]  # {"lines": {test: {module: [line]}}, "seconds": {test: s}}


class Tracer:
    """A plug-in that notes the lines of some files, test by test."""

    def __init__(self, modules: list[str]) -> None:
        self._files = {str(ROOT / module): module for module in modules}
        self.lines: dict[str, dict[str, set[int]]] = {}
        self.set_up: dict[str, dict[str, set[int]]] = {}
        self.seconds: dict[str, float] = {}
        self._now: dict[str, set[int]] = self.lines.setdefault(IMPORTED, {})

    def trace(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        module = self._files.get(frame.f_code.co_filename)
        if module is None:
            return None
        lines = self._now.setdefault(module, set())
        lines.add(frame.f_lineno)

        def note(frame: FrameType, event: str, arg: object) -> Callable[..., Any]:
            lines.add(frame.f_lineno)
            return note

        return note

    def start(self) -> None:
        threading.settrace(self.trace)
        sys.settrace(self.trace)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        self._now = self.set_up.setdefault(item.nodeid.split("::")[0], {})
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        self._now = self.lines.setdefault(item.nodeid, {})
        started = time.process_time()  # of this process: others may be busy
        sys.settrace(self.trace)  # a test may have taken it away
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = time.process_time() - started

    def found(self) -> Reach:
        lines: dict[str, dict[str, list[int]]] = {}
        for test, modules in self.lines.items():
            shared = self.set_up.get(test.split("::")[0], {})
            lines[test] = {
                name: sorted(modules.get(name, set()) | shared.get(name, set()))
                for name in {*modules, *shared}
            }
        return {"lines": lines, "seconds": self.seconds}


def measure(modules: list[str], tests: list[str]) -> Reach:
    """Run test files once, traced."""
    tracer = Tracer(modules)
    tracer.start()
    try:
        status = pytest.main([*OPTIONS, *tests], plugins=[tracer])
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
    if status:
        raise SystemExit(f"the tests must pass before anything is changed: status {status}")
    return tracer.found()


def marks() -> dict[str, str]:
    """A digest of the sources and of the tests' own helpers, and one of each test file."""
    found: dict[str, str] = {}
    sources = hashlib.sha256()
    for folder in ("timeline", "tableservices", "lockproviders", *TESTS):
        for file in sorted((ROOT / folder).rglob("*.py")):
            name = file.relative_to(ROOT).as_posix()
            if file.name.startswith("test_"):
                found[name] = hashlib.sha256(file.read_bytes()).hexdigest()
            else:
                sources.update(name.encode() + file.read_bytes())
    found[SOURCES] = sources.hexdigest()
    return found


def reach_of(
    modules: list[str],
    kept: Path,
    *,
    sources_may_differ: bool = False,
    wanted: Callable[[str], bool] = lambda file: True,
) -> Reach:
    """
    Return the kept map after measuring changed parts again, in a process of its own.

    Args:
        modules: Paths of the modules whose lines are noted.
        kept: The file of the map.
        sources_may_differ: Keep measurements from before a source changed.
        wanted: Whether a test file that is not in the map is measured now.
    """
    now = marks()
    old: Reach = {"marks": {}, "lines": {}, "seconds": {}, "modules": modules}
    if kept.is_file():
        found: Reach = json.loads(kept.read_text(encoding="utf-8"))
        same = found["marks"][SOURCES] == now[SOURCES] or sources_may_differ
        if same and set(modules) <= set(found["modules"]):
            old = found
    before = old["marks"]
    differs = [name for name in now if name != SOURCES and before.get(name) != now[name]]
    changed = [name for name in differs if wanted(name)]
    if not changed:
        return old
    waiting = {*differs} - {*changed}
    now = {name: mark for name, mark in now.items() if name not in waiting}
    if old["marks"]:
        now[SOURCES] = old["marks"][SOURCES]  # older measurements are no newer
    child = os.fork()
    if child == 0:
        fresh = measure(old["modules"], changed)
        for part in ("lines", "seconds"):
            files = {*changed, *waiting, *(name for name in before if name not in now)}
            stays = {t: v for t, v in old[part].items() if t.split("::")[0] not in files}
            fresh[part] = {**stays, **fresh[part]}
        imported = (old["lines"].get(IMPORTED, {}), fresh["lines"][IMPORTED])
        fresh["lines"][IMPORTED] = {**imported[0], **imported[1]}
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps({**fresh, "marks": now, "modules": old["modules"]}))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status:
        raise SystemExit("the traced run failed")
    return dict(json.loads(kept.read_text(encoding="utf-8")))
