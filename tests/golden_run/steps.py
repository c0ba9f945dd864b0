"""The steps of a golden run, and the digest of each file that a step made, changed or took away."""

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

__all__ = ["GoldenRun"]

#: What every table has unless a scenario says otherwise: nothing runs by itself.
OPTIONS = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.write.lock.provider": "filesystem",
    "hoodie.clean.failed.writes.policy": "LAZY",
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
    "hoodie.metadata.enable": "false",
    "hoodie.write.set.null.for.missing.columns": "true",
    "hoodoo.storage.durability": "relaxed",
}
_NONCE = re.compile(NONCE_PREFIX.hex().encode() + rb"[0-9a-f]{24}")
#: What may differ between two runs: the inode of a file, and texts for people, which may be reworded.
_MASKED = re.compile(rb'("(?:file_number|message|why)": )"(?:[^"\\\\]|\\\\.)*"')
_CHECKED = re.compile(rb"\n([0-9a-f]{8}) \d+\n?\Z")  # how a slot ends
_TEMPORARY = ".tmp-"
_DIGITS = 12

_NONE: Mapping[str, str] = MappingProxyType({})

Digests = dict[str, str]


class GoldenRun:
    """
    Runs scenarios in the folder of this process and keeps the digests of each step.

    Args:
        machine: The fixed machine, whose root is the folder of this process.
    """

    def __init__(self, machine: FixedMachine) -> None:
        self.machine = machine
        self.steps: dict[str, Digests] = {}
        self.address = self._scenario = ""
        self._options: dict[str, str] = {}
        self._known: Digests = {}

    def scenario(self, name: str, *, at: str = HERE, options: Mapping[str, str] = _NONE) -> None:
        """
        Begin a scenario: one table, at the same time as every other.

        Args:
            name: Of its folder.
            at: What the address begins with.
            options: Of every writer, beside ``OPTIONS``.
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
        """Everything within happens at one moment; its files are digested at the end."""
        label = f"{self._scenario} {self._number():02d} {name}"
        self.machine.begin(label)
        yield
        self.machine.end()
        self.steps[label] = self._digests()

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
        """Open the table as another writer, which is known by this name."""
        import hoodoo

        self.machine.known_as(f"{self._scenario} {writer}")
        table = hoodoo.open_table(self.address, properties={**self._options, **(properties or {})})
        self.machine.draw_again()
        return table

    def before(self, pattern: str, act: Any) -> None:
        """Within a step: act once, before a file whose path has this pattern gets its name."""
        wanted = re.compile(pattern)

        def hook(path: str) -> None:
            if wanted.search(path):
                self.machine.before_naming = _nothing
                act()

        self.machine.before_naming = hook

    def die(self, writer: str, before: str, work: Any, properties: Any = None) -> None:
        """Let another process open the table and work, and kill it before it names a file."""
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
    if check := _CHECKED.search(data):  # a checksum of the nonce, too; a wrong one shows
        right = int(check[1], 16) == zlib.crc32(data[: check.start()])
        data = data[: check.start()] + (b"" if right else check[0])
    if data.startswith(b"{"):
        data = _MASKED.sub(rb'\1"..."', data)
    return hashlib.sha256(_NONCE.sub(b"NONCE", data)).hexdigest()[:_DIGITS]


def _nothing(_path: str) -> None: ...
