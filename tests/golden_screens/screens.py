"""
The screens of the command line: one table, a fixed clock and fixed ids, 80 columns.

The commands run in a process of their own (``FixedMachine``), so the text is the same each time.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import shlex
import subprocess
import sys
from pathlib import Path

from tests.docs.screen import Remarks, Screen
from tests.golden_run.fixed_machine import HERE, FixedMachine

ROOT = Path(__file__).parents[2]
RECORDED = Path(__file__).with_name("screens.txt")
RECORD = "python -m tests.golden_screens --record"
WIDTH = 80
LINES_MAX = 45  # of one screen
DAY_MS = 24 * 3_600_000

FILES = {
    "rows.csv": "id,name,amount,day,version\n"
    "1,Ann Archer,1.5,2026-01-01,1\n2,Bob Bright,2.5,2026-01-02,1\n3,Eve Ehrlich,,2026-01-02,1\n",
    "later.csv": "id,name,amount,day,version\n"
    "2,Bob Bright,20.5,2026-01-02,2\n4,Dan Dorn,4.5,2026-01-03,1\n",
    "events.csv": "id,kind\n1,view\n2,click\n",
    "gone.csv": "id,day\n1,2026-01-01\n",
    "bad.properties": "hoodie.index.type=HBASE\nhoodie.clean.comits.retained=3\n"
    "hoodie.metrics.on=true\n",
    "lock.properties": "hoodie.write.concurrency.mode=OPTIMISTIC_CONCURRENCY_CONTROL\n"
    "hoodie.write.lock.provider=filesystem\nhoodoo.lock.audit=true\n"
    "hoodie.clean.failed.writes.policy=LAZY\n",
}
KEYS = "--key id --partition-by day --ordering version"
CREATE_EVENTS = (
    "hoodoo table create TABLES/events --schema 'id long, kind string' --key id "
    "--table-type MERGE_ON_READ"
)

#: ``TABLE`` is the table with rows. A line without ``hoodoo`` changes the machine.
COMMANDS = (
    "hoodoo --help",
    f"hoodoo write TABLE --input rows.csv {KEYS} --dry-run",
    f"hoodoo write TABLE --input rows.csv {KEYS} --props lock.properties",
    "hoodoo write TABLE --input later.csv --batch-id monday --props lock.properties",
    "hoodoo write TABLE --input later.csv --batch-id monday --props lock.properties",
    "hoodoo write TABLE --input gone.csv --operation delete --props lock.properties --dry-run",
    "hoodoo write TABLE --input gone.csv --operation delete --props lock.properties",
    "hoodoo log TABLE",
    "hoodoo timeline show TABLE",
    "hoodoo explain TABLE @-1",
    "hoodoo explain TABLE --contention",
    "hoodoo explain --matrix",
    "hoodoo read TABLE",
    "hoodoo read TABLE --as-of @-2 --meta --limit 2",
    "hoodoo read TABLE --query-type cdc --since @-2",
    "hoodoo read TABLE --to rows.parquet",
    "hoodoo diff TABLE @-3 @-1",
    "hoodoo diff TABLE @-3 --rows --partitions",
    "hoodoo diff TABLE @-1",
    "hoodoo files TABLE",
    "hoodoo table show TABLE",
    "hoodoo table verify TABLE",
    "hoodoo table verify TABLE --history",
    "hoodoo config show --set-only --props bad.properties",
    "hoodoo config check --props bad.properties",
    "hoodoo config check TABLE --props lock.properties",
    "hoodoo writers TABLE",
    "hoodoo writers forget TABLE 0 --yes",
    "hoodoo locks doctor TABLE --props lock.properties",
    "hoodoo locks holders TABLE --props lock.properties",
    "hoodoo locks audit TABLE --since 2d",
    "hoodoo locks break TABLE --yes",
    "hoodoo savepoint create TABLE @-2 --comment 'before the import' --dry-run",
    "hoodoo savepoint create TABLE @-2 --comment 'before the import'",
    "hoodoo savepoint list TABLE",
    "hoodoo savepoint delete TABLE @-2 --dry-run",
    "hoodoo savepoint delete TABLE @-2 --yes",
    "hoodoo savepoint list TABLE",
    CREATE_EVENTS + " --dry-run",
    CREATE_EVENTS,
    "hoodoo files TABLES/events",
    "hoodoo write TABLES/events --input events.csv",
    "hoodoo write TABLES/events --input events.csv",
    "hoodoo files TABLES/events",
    "hoodoo services run TABLES/events --service compact --dry-run",
    "hoodoo services plan TABLES/events --service compact",
    "hoodoo services cancel TABLES/events @-1 --dry-run",
    "hoodoo services worker TABLE TABLES/events --rounds 1",
    "hoodoo services run TABLE --service clean --dry-run",
    "hoodoo services run TABLE --service clean",
    "hoodoo services run TABLE --service cluster --dry-run",
    "hoodoo services plan TABLE --service cluster",
    "hoodoo services worker TABLE TABLES/events --rounds 1",
    "hoodoo table orphans TABLE",
    "hoodoo table upgrade TABLE --dry-run",
    "hoodoo table repair-keys TABLE --dry-run",
    "hoodoo table repair-moments TABLE --dry-run",
    "hoodoo metadata create TABLE --dry-run",
    "hoodoo metadata create TABLE --yes",
    "hoodoo metadata status TABLE",
    "hoodoo metadata verify TABLE",
    "hoodoo metadata drop TABLE --yes",
    "hoodoo table adopt TABLE --dry-run",
    "hoodoo table end-slot TABLE --dry-run",
    "die",
    "hoodoo log TABLE -n 2",
    "hoodoo writers TABLE",
    "hoodoo services run TABLE --service clean --props lock.properties",
    "hoodoo rollback TABLE @-1 --dry-run",
    "hoodoo rollback TABLE @-1 --yes",
    "hoodoo restore TABLE @-2 --dry-run",
    "hoodoo restore TABLE @-2 --yes",
    "hoodoo table drop TABLE --dry-run",
    "hoodoo table drop TABLE --yes",
    "hoodoo log TABLE",
)


def run_here(folder: Path) -> str:
    """Run every command in this process, which is of no other use afterwards; return the text."""
    machine = FixedMachine(folder)
    machine.fix()  # before anything of the engine is imported
    os.chdir(folder)
    for name, text in FILES.items():
        Path(name).write_text(text, encoding="utf-8")
    shown = []
    for number, command in enumerate(COMMANDS):
        machine.begin(f"{number} {command}")
        if command == "die":
            _begin_a_write()
            machine.end()
            machine.now_ms += DAY_MS
            machine.steady_ms += DAY_MS
            continue
        status, text = _run(command)
        machine.end()
        ending = f"  # exits {status}" if status else ""
        lines = [line.rstrip() for line in text.replace(HERE, "/lake").splitlines()]
        lines[LINES_MAX:] = ["..."] if len(lines) > LINES_MAX else []
        shown.append("\n".join((f"$ {command}{ending}", *lines)) + "\n")
    return "\n".join(shown)


def _run(command: str) -> tuple[int, str]:
    from hoodoo.cli import main

    words = shlex.split(command.replace("TABLES", HERE).replace("TABLE", f"{HERE}/people"))[1:]
    screen, status = Screen(), 0
    with contextlib.redirect_stdout(screen), contextlib.redirect_stderr(Remarks(screen)):
        try:
            main.main(words, prog_name="hoodoo")
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 1
    return status, screen.shown()


def _begin_a_write() -> None:
    """Leave a pending write, as a process does that is killed before its commit."""
    import hoodoo

    class KilledError(BaseException):
        pass

    opened = os.open

    def killed_open(name: object, flags: int, *more: object, **how: object) -> int:
        if flags & os.O_CREAT and ".parquet" in os.fsdecode(name):  # type: ignore[arg-type]
            raise KilledError
        return opened(name, flags, *more, **how)  # type: ignore[arg-type]

    table = hoodoo.open_table(f"{HERE}/people", properties=["lock.properties"])
    os.open = killed_open  # type: ignore[assignment]
    with contextlib.suppress(KilledError):
        table.upsert("later.csv")
    os.open = opened


def run_elsewhere(folder: Path) -> str:
    """
    Run every command in a new process.

    Raises:
        AssertionError: The process failed.
    """
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    used = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TZ": "UTC", "NO_COLOR": "1"}
    ended = subprocess.run(
        [sys.executable, "-m", "tests.golden_screens", "--inside", str(folder)],
        cwd=ROOT,
        env={**inherited, **used, "COLUMNS": str(WIDTH)},
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    if ended.returncode:
        raise AssertionError(f"the commands failed\n{ended.stdout}{ended.stderr}")
    return ended.stdout


def difference(found: str) -> str:
    """Return the difference to the committed screens, with the way to record; else empty."""
    recorded = RECORDED.read_text(encoding="utf-8")
    if found == recorded:
        return ""
    lines = difflib.unified_diff(
        recorded.splitlines(), found.splitlines(), "committed", "printed", lineterm=""
    )
    return "\n".join((*lines, "", f"if the screens are as wanted, run: {RECORD}"))
