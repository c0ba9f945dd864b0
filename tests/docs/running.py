"""
Run the blocks of a page from top to bottom in one empty folder.

Blocks of Python share a namespace. Lines of ``$ hoodoo ...`` run in this process as on a terminal,
other commands in a shell. Blocks of properties go through the check of ``hoodoo config check``.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from hoodoo.cli import main
from hoodoo.configuration import Layers, Severity, check
from hoodoo.services import service_options, services_of
from tests.docs.page import ROOT, Block, Page
from tests.docs.screen import Remarks, Screen, difference

COMMAND_SECONDS_MAX = 240
WIDTH = 100
_EXITS = re.compile(r"\s+#\s*exits (\d+)\s*$")
_SHELL = re.compile(r"[|&;<>`$*]")
_SPARK = re.compile(r"\bpyspark\b|\bhoodoo\.spark\b")


class SnippetError(AssertionError):
    """A block of a page does not behave as the page says."""


@dataclass
class PageRun:
    """
    One run of a page.

    Args:
        page: The page.
        folder: An empty folder; the process must already be in it.
        services: The available services; blocks that need others are left out.
        replaced: Texts of the page and their replacements here, such as addresses of servers.
    """

    page: Page
    folder: Path
    services: frozenset[str] = frozenset()
    replaced: Mapping[str, str] = field(default_factory=dict)
    namespace: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    printed: str = ""
    background: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def run(self) -> int:
        """
        Run every block whose services are there, and return how many that were.

        Raises:
            SnippetError: A block fails; the text names page, line and output.
        """
        count = 0
        try:
            for block in self.page.blocks:
                if block.is_run and block.needs <= self.services:
                    self._block(block)
                    count += 1
        finally:
            for process in self.background:
                process.send_signal(signal.SIGTERM)
            for process in self.background:
                process.wait(COMMAND_SECONDS_MAX)
        return count

    def _block(self, block: Block) -> None:
        text = block.text
        for here, there in self.replaced.items():
            text = text.replace(here, there)
        if "output" in block.directives:
            self._compare(block.line, text, self.printed)
            return
        if name := block.directives.get("file"):
            (self.folder / name).write_text(text + "\n", encoding="utf-8")
        if block.language == "properties":
            self._properties(block, text)
        elif block.language == "console":
            self._console(block, text)
        elif block.language == "python" and "file" not in block.directives:
            self._python(block, text)

    def _python(self, block: Block, text: str) -> None:
        if _SPARK.search(text) and "spark" not in self.services:
            raise SnippetError(f"{self._at(block.line)}: mark the block <!-- needs: spark -->")
        screen = Screen()
        padded = "\n" * (block.line - 1) + text
        try:
            code = compile(padded, str(self.page.name), "exec", dont_inherit=True)
            with _terminal(screen), warnings.catch_warnings():
                warnings.simplefilter("default")
                exec(code, self.namespace)
        except (Exception, SystemExit) as error:  # noqa: BLE001  a snippet may raise anything
            place = block.line
            for frame in traceback.extract_tb(error.__traceback__):
                if frame.filename == self.page.name and frame.lineno:
                    place = frame.lineno
            trace = "".join(traceback.format_exception(error))
            raise SnippetError(f"{self._at(place)}: {error}\n{screen.shown()}{trace}") from None
        self.printed = screen.shown()

    def _console(self, block: Block, text: str) -> None:
        for line, typed, shown in commands(text):
            exits = _EXITS.search(typed)
            command = typed[: exits.start()] if exits else typed
            wanted = int(exits[1]) if exits else 0
            status, self.printed = self._command(command)
            at = block.line + line
            if status != wanted:
                raise SnippetError(
                    f"{self._at(at)}: '{command}' exits {status}, not {wanted}\n{self.printed}"
                )
            if shown.strip():
                self._compare(at, shown, self.printed)

    def _command(self, command: str) -> tuple[int, str]:
        plain = command.replace("\\\n", " ").replace("$PWD", str(self.folder))
        if plain.startswith("hoodoo ") and not _SHELL.search(plain):
            return self._hoodoo(shlex.split(plain, comments=True)[1:])
        if command.rstrip().endswith("&"):
            self.background.append(
                subprocess.Popen(
                    ["bash", "-c", f"exec {command.rstrip().removesuffix('&')}"],
                    cwd=self.folder,
                    env=environment(),
                    stdout=subprocess.DEVNULL,
                )
            )
            return 0, ""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_SECONDS_MAX,
            check=False,
        )
        return done.returncode, done.stdout

    def _hoodoo(self, arguments: list[str]) -> tuple[int, str]:
        screen = Screen()
        status = 0
        try:
            with _terminal(screen), _signals_kept():
                main.main(arguments, prog_name="hoodoo", standalone_mode=True)
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else int(error.code is not None)
        except click.ClickException as error:
            status = error.exit_code
        return status, screen.shown()

    def _properties(self, block: Block, text: str) -> None:
        source = self.folder / ".page.properties"
        source.write_text(text, encoding="utf-8")
        problems = check(
            Layers(props=(source,), environment={}).load(),
            more=service_options(),
            makes=(services_of,),
        )
        source.unlink()
        kinds = {one.kind: one for one in problems if one.severity is Severity.ERROR}
        wanted = block.directives.get("refused")
        if wanted is not None and set(wanted.split()) <= set(kinds):
            return
        if wanted is not None or kinds:
            said = "\n".join(f"{one.kind}: {one.message}" for one in problems)
            raise SnippetError(f"{self._at(block.line)}: the check of settings says\n{said}")

    def _compare(self, line: int, shown: str, printed: str) -> None:
        if found := difference(shown, printed, self.folder):
            raise SnippetError(f"{self._at(line)}: the output differs\n{found}\n\n{printed}")

    def _at(self, line: int) -> str:
        return f"{self.page.name}:{line}"


def commands(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield each command of a console block with its line, counted from 0, and the shown output."""
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        start = number
        if not lines[number].startswith("$ "):
            raise SnippetError(f"a console block starts with '$ command': {lines[number]}")
        command = [lines[number][2:]]
        while command[-1].endswith("\\") and number + 1 < len(lines):
            number += 1
            command.append(lines[number].removeprefix("> "))
        number += 1
        shown = []
        while number < len(lines) and not lines[number].startswith("$ "):
            shown.append(lines[number])
            number += 1
        yield start, "\n".join(command), "\n".join(shown)


def environment() -> dict[str, str]:
    """Return the environment of commands: this interpreter and this source tree come first."""
    found = dict(os.environ)
    found["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{found.get('PATH', '')}"
    found["PYTHONPATH"] = str(ROOT)
    found["NO_COLOR"] = "1"
    found["COLUMNS"] = str(WIDTH)
    return found


@contextlib.contextmanager
def _terminal(screen: Screen) -> Iterator[None]:
    with contextlib.redirect_stdout(screen), contextlib.redirect_stderr(Remarks(screen)):
        yield


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """A command installs handlers for its process; the tests keep theirs."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)
