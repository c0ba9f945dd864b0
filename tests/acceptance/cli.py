"""Running the command line inside the test's process."""

from __future__ import annotations

import hashlib
import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from hoodoo.cli import main

ROWS = """id,name,amount,day,version
1,ann,1.5,2013-01-01,1
2,bob,2.5,2013-01-02,1
3,eve,,2013-01-02,1
"""


@dataclass(frozen=True)
class Answer:
    """The result of a command."""

    exit_code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Standard output as one JSON document."""
        return json.loads(self.out)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Standard output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> dict[str, Any]:
        """The one object on standard error."""
        found: dict[str, Any] = json.loads(self.err.splitlines()[-1])
        return found


def run(*arguments: object, env: dict[str, str] | None = None) -> Answer:
    """Run one command; the signal handlers are the same afterwards."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        done = CliRunner().invoke(main, [str(each) for each in arguments], env=env)
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)
    assert "Traceback" not in done.stderr
    return Answer(done.exit_code, done.stdout, done.stderr)


def table_with_rows(folder: Path) -> Path:
    """A small table made by hoodoo itself: three rows in two partitions."""
    source = folder / "rows.csv"
    source.write_text(ROWS, encoding="utf-8")
    table = folder / "people"
    made = run(
        "write",
        table,
        "--input",
        source,
        *["--key", "id", "--partition-by", "day"],
        "--ordering",
        "version",
    )
    assert made.exit_code == 0, made.err
    return table


def contents(folder: Path) -> dict[str, str]:
    """Every file of a table with its hash, without hoodoo's own files that name processes."""
    return {
        file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and not file.is_relative_to(folder / ".hoodie" / ".hoodoo")
    }
