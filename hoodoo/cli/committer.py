"""``hoodoo committer``: one process that commits the small writes of a host together."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from filegroups.settings.settings import WriteSettings
from hoodoo.cli.invocation import Command, Invocation, reading
from hoodoo.cli.services import import_all, log_events, stop_on_signals, write_health_file
from hoodoo.committer.server import Committer, CommitterReport, committer_table
from hoodoo.committer.sockets import SocketListener
from timeline.errors import SettingError, counted
from timeline.ports.ports import Clock


@click.command(cls=Command)
@click.argument("addresses", metavar="TABLE...", nargs=-1, required=True)
@click.option(
    "--socket",
    type=click.Path(path_type=Path),
    help="The socket for writers. Default: hoodoo.group.commit.service.",
)
@click.option(
    "--health",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A JSON file with the state and the counts of the committer.",
)
@click.option("--events", is_flag=True, help="Print every event on standard error.")
@reading
def committer(
    invocation: Invocation,
    *,
    addresses: tuple[str, ...],
    socket: Path | None,
    health: Path | None,
    events: bool,
) -> None:
    """
    Commit small writes of this host together.

    It runs until SIGTERM or Ctrl-C and needs the properties of its writers, which find it by
    hoodoo.group.commit.service. The first signal ends it after the current group, a second one
    interrupts the group. Without a committer the writers commit themselves.
    """
    import_all()
    stop = stop_on_signals()
    if events:
        log_events()
    with ExitStack() as held:
        tables = [held.enter_context(invocation.open_table(one)) for one in addresses]
        first = tables[0].settings
        path = socket or (Path(first.group_service) if first.group_service else None)
        if path is None:
            raise _no_socket()
        served = [committer_table(one) for one in tables]
        clock = tables[0].context.ports.clock
        listener = held.enter_context(
            closing(SocketListener(path, clock, send_ms=min(one.answer_ms for one in served)))
        )
        reporter = HealthReporter(health, clock)
        serving = Committer(listener, served, watcher=reporter)
        reporter.write("serving", serving.report)
        invocation.printer.remark(f"commits for writers at {path}")
        report = serving.run(stop)
        reporter.write("ended", report)
    invocation.printer.remark(
        f"{counted(report.groups, 'instant')} of {counted(report.writes, 'write')}, {report.handed_back} handed back, "
        f"{report.lost} lost, {report.failures} failed"
    )


@dataclass(frozen=True, slots=True)
class HealthReporter:
    """Keeps the health file."""

    health: Path | None
    clock: Clock

    def rested(self, report: CommitterReport) -> None:
        """As ``Watcher``."""
        self.write("serving", report)

    def write(self, state: str, report: CommitterReport) -> None:
        """Write the state and the counts."""
        if self.health is not None:
            write_health_file(
                self.health, {"state": state, "at_ms": self.clock.now_ms(), **asdict(report)}
            )


def _no_socket() -> SettingError:
    key = WriteSettings.options["group_service"].key
    return SettingError(
        f"writers must know the socket of the committer; use --socket, or set {key} for both",
        kind="committer_socket",
        key=key,
        value="",
        layer="",
        suggestion="a short path in a folder of your own",
    )
