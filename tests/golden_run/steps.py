"""The steps of a golden run, and the digest of each file that a step creates, changes or deletes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tests.golden_run.fixed_machine import HERE, NONCE_PREFIX, START_MS, FixedMachine

if TYPE_CHECKING:
    import hoodoo


#: The options of every writer, unless a scenario has others: no service runs by itself.
OPTIONS = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.write.lock.provider": "filesystem",
    "hoodie.clean.failed.writes.policy": "LAZY",
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
    "hoodie.write.set.null.for.missing.columns": "true",
    "hoodoo.storage.durability": "relaxed",
}
_NONCE = re.compile(NONCE_PREFIX.hex().encode() + rb"[0-9a-f]{24}")
#: Two runs may differ in the inode of a file, and a commit may reword messages.
_MASKED = re.compile(rb'("(?:file_number|message|why)": )"(?:[^"\\\\]|\\\\.)*"')
_CHECKED = re.compile(rb"\n([0-9a-f]{8}) \d+\n?\Z")  # how a slot ends
_TEMPORARY = ".tmp-"
_DIGITS = 12

_NONE: Mapping[str, str] = MappingProxyType({})

Digests = dict[str, str]


class LastStepError(Exception):
    """The run has reached the step that ends it."""


class GoldenRun:
    """
    Runs scenarios in the folder of this process and keeps the digests of each step.

    Args:
        machine: The fixed machine, whose root is the folder of this process.
        last_step: The name of the step that ends the run; empty for none.

    A digest is recorded for each file that a step creates or changes. The mark ``-`` behind a
    path means that the step deletes the file. ``+-`` means that the file, or this content of it,
    exists only within the step.
    """

    def __init__(self, machine: FixedMachine, last_step: str = "") -> None:
        self.machine = machine
        self._last_step = last_step
        self.steps: dict[str, Digests] = {}
        self.address = self._scenario = ""
        self._options: dict[str, str] = {}
        self._known: Digests = {}

    def scenario(self, name: str, *, at: str = HERE, options: Mapping[str, str] = _NONE) -> None:
        """
        Begin a scenario: one table, at the same time as every other.

        Args:
            name: Name of its folder.
            at: Prefix of the address.
            options: Options of every writer, in addition to ``OPTIONS``.
        """
        self._scenario, self._known = name, {}
        self.address, self._options = f"{at}/{name}", {**OPTIONS, **options}
        self.machine.now_ms = START_MS

    def take_over(self) -> None:
        """Let the table begin with the files that were put into its folder."""
        self.machine.end()
        self._known = self._files()

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Run one step at one moment, then take the digests of its files."""
        label = f"{self._scenario} {self._number():02d} {name}"
        self.machine.begin(label)
        yield
        self.machine.end()
        self.steps[label] = self._digests()
        if label == self._last_step:
            self._keep_gone()
            raise LastStepError(label)

    def create(self, **options: Any) -> hoodoo.Table:
        """Create the table of the scenario; ``properties`` are of this writer alone."""
        import hoodoo

        properties = {**self._options, **options.pop("properties", {})}
        with self.step("create"):
            self.machine.known_as(f"{self._scenario} first")
            table = hoodoo.create_table(self.address, properties=properties, **options)
            self.machine.draw_again()
        return table

    def open(self, writer: str, properties: Mapping[str, str] | None = None) -> hoodoo.Table:
        """Open the table as another writer, whose ids follow from its name."""
        import hoodoo

        self.machine.known_as(f"{self._scenario} {writer}")
        table = hoodoo.open_table(self.address, properties={**self._options, **(properties or {})})
        self.machine.draw_again()
        return table

    def before(self, pattern: str, act: Any) -> None:
        """Within a step, act once, before a file gets a path that has this pattern."""
        wanted = re.compile(pattern)

        def hook(path: str) -> None:
            if wanted.search(path):
                self.machine.before_naming = _nothing
                act()

        self.machine.before_naming = hook

    def die(self, writer: str, before: str, work: Any, properties: Any = None) -> None:
        """Open the table in another process and kill it before a file gets such a path."""
        child = os.fork()
        if child == 0:
            self.machine.process = writer
            try:
                table = self.open(writer, properties)
                self.before(before, lambda: os._exit(9))
                work(table)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 9, f"{writer} did not die as it should"

    def _keep_gone(self) -> None:
        """Keep deleted files in a folder next to the tables, for comparisons by hand."""
        for path, data in self.machine.gone.items():
            kept = Path(self.machine.root, "gone", path)
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(data)

    def _number(self) -> int:
        return sum(label.startswith(self._scenario + " ") for label in self.steps) + 1

    def _digests(self) -> Digests:
        now = self._files()
        before, self._known = self._known, now
        found = {path: digest for path, digest in now.items() if before.get(path) != digest}
        found |= {f"{path} -": before[path] for path in before.keys() - now.keys()}
        for path, data in self.machine.gone.items():
            digest = _digest(data)
            if before.get(path) != digest:
                found[f"{_named(path)} +-"] = digest
        start = self._scenario + "/"
        return {path.removeprefix(start): found[path] for path in sorted(found)}

    def _files(self) -> Digests:
        found = {}
        for folder, _, names in os.walk(Path(self.machine.root, self._scenario)):
            for name in names:
                path = Path(folder, name)
                if not name.startswith(_TEMPORARY):
                    relative = path.relative_to(self.machine.root).as_posix()
                    found[_named(relative)] = _digest(path.read_bytes())
        return found


def _named(path: str) -> str:
    return _NONCE.sub(b"NONCE", path.encode()).decode()


def _digest(data: bytes) -> str:
    if not data:
        return "empty"
    if check := _CHECKED.search(data):  # it covers the nonce; a wrong checksum stays
        right = int(check[1], 16) == zlib.crc32(data[: check.start()])
        data = data[: check.start()] + (b"" if right else check[0])
    if data.startswith(b"{"):
        data = _MASKED.sub(rb'\1"..."', data)
    return hashlib.sha256(_NONCE.sub(b"NONCE", data)).hexdigest()[:_DIGITS]


def _nothing(_path: str) -> None: ...
