"""``hoodoo locks``: test a lock, list and break holders, and run a command under it."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

import click

from hoodoo.cli.invocation import PROBLEMS_FOUND, Invocation, changing, reading
from hoodoo.factory import compose_ports
from hoodoo.table import Table
from lockproviders.acquire import ProviderLock
from lockproviders.audit import AUDIT_FOLDER, AuditedHolding, read_audit, record_break
from lockproviders.client import BreakableLockClient, describe_owner, parse_note
from lockproviders.doctor import LockExamination, examine
from timeline.errors import HoodooError, InvalidInputError, UnsafeSetupError
from timeline.model.instant import UTC_ZONE, TimelineZone
from timeline.model.time_arguments import TimeArgument, parse_time_travel
from timeline.ports.ports import Lease

# ---- A command run under a lease, as flock(1) runs one under a file's lock
# Its own file because it is the one place of the command line that starts processes. What
# the lease cannot promise to a foreign command is kept here: it is ended when the lease is
# lost, and by the kernel when this process dies, so that no two of them run at once.

NOT_FOUND = 127  # as shells report it
CANNOT_RUN = 126
KILLED_BY = 128  # plus the signal's number
POLL_SECONDS = 0.1
KILL_SECONDS_MAX = 30.0

_FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_FROM_THE_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
_PR_SET_PDEATHSIG = 1


def run_under(lease: Lease, command: Sequence[str], *, kill_after_seconds: float) -> int:
    """
    Run a command while the lease is held; signals reach it, its exit code is returned.

    It finds ``HOODOO_LOCK_OWNER`` and, where the provider has them, ``HOODOO_LOCK_TOKEN`` in
    its environment: a fencing token that other systems may check.

    Args:
        lease: Held; stays so.
        command: Program and arguments; no shell looks at them.
        kill_after_seconds: Between SIGTERM and SIGKILL, when the lease is lost.

    Returns:
        The command's exit code; 128 and the signal's number when one ended it; 126 or 127
        when it could not be started.

    Raises:
        LeaseLostError: The lease was lost; the command has been ended.
    """
    forwarding = _Forwarding()
    with forwarding:
        try:
            process = _start(lease, command, own_group=not forwarding.at_terminal)
        except FileNotFoundError:
            return NOT_FOUND
        except OSError:
            return CANNOT_RUN
        forwarding.to(process)
        try:
            return _watched(lease, process)
        except BaseException:
            forwarding.end(process, kill_after_seconds)
            raise


def _watched(lease: Lease, process: subprocess.Popen[bytes]) -> int:
    while True:
        try:
            code = process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            lease.assert_held()
        else:
            return code if code >= 0 else KILLED_BY - code


def _start(lease: Lease, command: Sequence[str], *, own_group: bool) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "HOODOO_LOCK_OWNER": lease.owner}
    if lease.fencing_token is not None:
        environment["HOODOO_LOCK_TOKEN"] = str(lease.fencing_token)
    lease.assert_held()
    return subprocess.Popen(  # noqa: S603 - the command is the caller's own, and no shell
        list(command),
        env=environment,
        process_group=0 if own_group else None,
        preexec_fn=_dying_with(os.getpid()),  # noqa: PLW1509 - one system call, no locks
    )


def _dying_with(parent: int) -> Callable[[], None] | None:
    """
    Has the kernel end the command when this process dies, because its lock ends then, too.

    Looked up before the fork: the child of a process with threads does as little as possible.
    Linux only; elsewhere a killed ``locks run`` leaves its command behind.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is None or not sys.platform.startswith("linux"):
        return None

    def before_exec() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)  # it died in between

    return before_exec


class _Forwarding:
    """Signals of this process, handed to the command instead of ending this process."""

    def __init__(self) -> None:
        # At a terminal the kernel sends Ctrl-C to the command itself, and job control must
        # see both in one group; elsewhere the command gets a group, to be ended as a whole.
        self.at_terminal = sys.stdin is not None and sys.stdin.isatty()
        self._process: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []
        self._before: dict[int, object] = {}

    def to(self, process: subprocess.Popen[bytes]) -> None:
        """Hand over what came while the command was being started, and what comes."""
        self._process = process
        while self._early:
            self._send(self._early.pop(0))

    def end(self, process: subprocess.Popen[bytes], kill_after_seconds: float) -> None:
        """SIGTERM, then SIGKILL; also to what it started, which may outlive it."""
        self._process = process
        self._send(signal.SIGTERM)
        looks_left = round(kill_after_seconds / POLL_SECONDS)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(kill_after_seconds)
        pause = threading.Event()
        while process.returncode is not None and self._is_group_left(process) and looks_left > 0:
            looks_left -= 1
            pause.wait(POLL_SECONDS)
        if process.returncode is None:
            self._send(signal.SIGKILL)
            process.wait(KILL_SECONDS_MAX)
        elif self._is_group_left(process):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def _is_group_left(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether anybody is in the command's own group; at a terminal it has none."""
        if self.at_terminal:
            return False
        try:
            os.killpg(process.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _take(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.at_terminal and number in _FROM_THE_TERMINAL:
            return
        if self._process is None:
            self._early.append(number)
        else:
            self._send(number)

    def _send(self, number: int) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        try:
            if self.at_terminal:
                process.send_signal(number)
            else:
                os.killpg(process.pid, number)
        except ProcessLookupError:
            return  # ended by itself

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in _FORWARDED:
                self._before[number] = signal.signal(number, self._take)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]


# ---- ``hoodoo locks``: does the lock exclude, who holds it, who held it, and a command under it

CONTENDER_DEADLINE_MS = 100
SHOWN_MAX = 1_000


@click.group()
def locks() -> None:
    """Look into the lock that writers of a table share, and use it for other work."""


# ---- doctor


@locks.command()
@click.argument("address", metavar="TABLE")
@click.option(
    "--expire-within",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    metavar="SECONDS",
    help="Longest lease that is waited out; the lock is held meanwhile. 0: none.",
)
@reading
def doctor(invocation: Invocation, *, address: str, expire_within: int) -> None:
    """
    Try the lock: reach, acquire, contend, release, fence, expire, clock.

    Takes the lock of a living table for moments, and for a lease where that is short. Exit
    code 5 when something is wrong; every such line says what to change.
    """
    with invocation.open_table(address) as opened:
        ports = opened.context.ports
        # The deadline alone: some providers derive their lease from Hudi's waiting times.
        quick = invocation.layers.with_code({"hoodoo.lock.deadline.ms": CONTENDER_DEADLINE_MS})
        rival = _provider_lock(compose_ports(address, quick.load(opened.config.raw)).lock)
        try:
            found = examine(
                _lock_of(opened),
                rival,
                clock=ports.clock,
                ids=ports.ids,
                storage=ports.storage,
                expire_ms_max=expire_within * 1000,
            )
        finally:
            rival.close()
    _print_examination(invocation, found)
    compiled_anew = _compiled_anew()
    if compiled_anew:
        invocation.printer.remark(
            f"beside the lock: PYTHONDONTWRITEBYTECODE is set and {', '.join(compiled_anew)} have "
            "no byte code, so each Python process of a Spark job compiles them again, a second or "
            "two of a core; unset it, or run 'python -m compileall -q' of their site-packages once"
        )
    if not found.ok:
        raise click.exceptions.Exit(PROBLEMS_FOUND)


def _compiled_anew() -> list[str]:
    """What Spark's Python processes import, where each has to compile it for itself."""
    if not sys.dont_write_bytecode or find_spec("pyspark") is None:
        return []
    found = {name: find_spec(name) for name in ("pyspark", "pyarrow", "hoodoo")}
    return [
        name
        for name, spec in found.items()
        if spec is not None and spec.cached is not None and not Path(spec.cached).exists()
    ]


def _print_examination(invocation: Invocation, found: LockExamination) -> None:
    printer = invocation.printer
    if not printer.for_people:
        printer.document(found.as_document())
        return
    printer.line(f"provider {found.provider}")
    printer.grid(
        ("check", "ok", "seconds", "what"),
        [
            (
                check.name,
                "skipped" if check.skipped else "yes" if check.ok else "NO",
                f"{check.seconds:.3f}",
                f"{check.message}; {check.advice}" if check.advice else check.message,
            )
            for check in found.checks
        ],
    )


# ---- holders


@locks.command()
@click.argument("address", metavar="TABLE")
@reading
def holders(invocation: Invocation, *, address: str) -> None:
    """Show who holds the lock now, since when and what for; nothing is taken."""
    with invocation.open_table(address) as opened:
        lock = _lock_of(opened)
        text = lock.holder()
        now_ms = opened.context.ports.clock.now_ms()
        document = {
            "provider": lock.provider,
            "identity": lock.identity,
            "holders": [] if text is None else [_holder_document(text, now_ms)],
        }
    printer = invocation.printer
    if not printer.for_people:
        printer.document(document)
        return
    printer.line(f"{document['provider']} {document['identity']}")
    if text is None:
        printer.line("free, as far as the provider can tell")
        return
    one = _holder_document(text, now_ms)
    printer.grid(
        ("owner", "pid", "host", "application", "since", "held", "for", "alone"),
        [
            (
                one["owner"] or one["text"],
                one["pid"],
                one["host"],
                one["application"],
                one["since"],
                None if one["held_seconds"] is None else f"{one['held_seconds']:.1f} s",
                one["purpose"],
                "no, with other writers of hoodoo" if one["shared"] else "yes",
            )
        ],
    )


def _holder_document(text: str, now_ms: int) -> dict[str, Any]:
    """What is known of a holder; of a Java one only what it wrote, as ``text``."""
    note = parse_note(text) or {}
    since_ms = note.get("since_ms")
    known = isinstance(since_ms, int) and 0 <= since_ms < 1 << 42
    owner = note.get("owner")
    return {
        "owner": owner if isinstance(owner, str) else None,
        "host": note.get("host"),
        "pid": note.get("pid"),
        "application": note.get("application"),
        "purpose": note.get("purpose"),
        "since": _text(since_ms) if known and isinstance(since_ms, int) else None,
        "held_seconds": (
            max(0, now_ms - since_ms) / 1000 if known and isinstance(since_ms, int) else None
        ),
        "ours": "owner" in note and "nonce" in note,
        "shared": note.get("shared") is True,
        "text": text,
    }


# ---- audit


_AGO = re.compile(r"(\d{1,6})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def _moment(_ctx: click.Context, _option: click.Parameter, text: str | None) -> TimeArgument | None:
    """A moment (in the table's zone where it names none), or as ``30m`` ago."""
    if text is None:
        return None
    ago = _AGO.fullmatch(text)
    try:
        if ago is not None:
            return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        parse_time_travel(text, UTC_ZONE)
    except (InvalidInputError, OverflowError) as error:
        raise click.BadParameter(
            "write 2026-01-31T12:00:00Z, 2026-01-31, or 30m, 2h, 7d for so long ago"
        ) from error
    return text


@locks.command()
@click.argument("address", metavar="TABLE")
@click.option("--since", callback=_moment, help="Only what was held after this time, or 2h ago.")
@click.option("--until", callback=_moment, help="Only what was held before this time.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=SHOWN_MAX, show_default=True, help="The newest."
)
@reading
def audit(
    invocation: Invocation,
    *,
    address: str,
    since: TimeArgument | None,
    until: TimeArgument | None,
    limit: int,
) -> None:
    """Show who held the lock and how long, as recorded under hoodoo.lock.audit=true."""
    with invocation.open_table(address) as opened:
        storage, zone = opened.context.ports.storage, opened.context.zone
        span = {"since_ms": _as_ms(since, zone), "until_ms": _as_ms(until, zone)}
        found = read_audit(storage, **span)[-limit:]
    printer = invocation.printer
    if not printer.for_people:
        printer.document({"holdings": [_holding_document(one) for one in found]})
        return
    if not found:
        printer.line(f"nothing on record in {AUDIT_FOLDER}; writers record with hoodoo.lock.audit")
        return
    printer.grid(
        ("since", "held", "owner", "for", "provider", "token", "renewed", "ended"),
        [
            (
                _text(one.start_ms),
                f"{one.held_ms / 1000:.3f} s",
                one.owner,
                one.purpose,
                one.provider,
                one.fencing_token,
                one.renewals,
                f"{one.ended} by {one.by}" if one.by else one.ended,
            )
            for one in found
        ],
    )


def _holding_document(one: AuditedHolding) -> dict[str, Any]:
    document: dict[str, Any] = one.as_document()
    ended_ms = document.pop("end_ms")
    document["since"] = _text(document.pop("start_ms"))
    document["until"] = None if ended_ms is None else _text(ended_ms)
    document["held_seconds"] = document.pop("held_ms") / 1000
    return document


# ---- break


@locks.command("break")
@click.argument("address", metavar="TABLE")
@click.option("--owner", help="Only if this one holds it, as `locks holders` shows it.")
@changing
def break_lock(invocation: Invocation, *, address: str, owner: str | None) -> None:
    """
    Take the lock away from its holder, who finds out at its next renewal.

    For a holder that is dead, where waiting for the end of its lease takes too long: one that
    lives may publish for a third of its lease yet. Asks first, and leaves a line for `locks audit`.
    """
    with invocation.open_table(address) as opened:
        lock = _lock_of(opened)
        ports = opened.context.ports
        client = lock.client
        if not isinstance(client, BreakableLockClient):
            raise UnsafeSetupError(
                f"the {lock.provider} lock cannot be taken away safely; it ends with its holder's "
                f"process, session or lease: end that process, held by "
                f"{describe_owner(lock.holder())}",
                kind="cannot_break",
                provider=lock.provider,
            )
        text = lock.holder()
        if text is None:
            raise InvalidInputError(
                f"nobody holds the lock, there is nothing to break: {lock.identity}",
                kind="not_held",
                identity=lock.identity,
            )
        found = _holder_document(text, ports.clock.now_ms())
        if owner is not None and owner not in (found["owner"], text):
            raise _changed(text, owner)
        document = {"identity": lock.identity, "holder": found, "broken": False, "audit": None}
        if not invocation.dry_run:
            invocation.confirm(f"take the lock from {describe_owner(text)}, since {found['since']}")
            if not client.break_lock(text):
                raise _changed(lock.holder(), found["owner"] or text)
            document["broken"] = True
            try:
                document["audit"] = record_break(
                    ports.storage,
                    clock=ports.clock,
                    ids=ports.ids,
                    holder_text=text,
                    provider=lock.provider,
                    identity=lock.identity,
                )
            except HoodooError as error:
                # It is broken all the same, and whoever believed otherwise would break the next one.
                invocation.printer.remark(
                    f"the lock was taken away, but not noted for 'locks audit': {error.message}"
                )
    invocation.printer.document(document)


def _changed(text: str | None, wanted: str) -> InvalidInputError:
    now = "nobody" if text is None else describe_owner(text)
    return InvalidInputError(
        f"the lock has another holder, nothing was broken; look at it with 'hoodoo locks "
        f"holders': {now} instead of {wanted[:200]!a}",
        kind="holder_changed",
        holder=now,
    )


# ---- run


class _WithCommand(click.Command):
    """Everything behind a lone ``--`` is a command, whatever its options look like."""

    MARK = "hoodoo.command"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[self.MARK] = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "-- COMMAND..."]


class _Seconds(click.FloatRange):
    """Of all numbers only those that a clock can count."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        seconds = float(super().convert(value, param, ctx))
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a valid number of seconds.", param, ctx)
        return seconds


@locks.command(cls=_WithCommand)
@click.argument("address", metavar="[TABLE]", required=False)
@click.option(
    "--wait",
    type=_Seconds(min=0, max=604_800),
    metavar="SECONDS",
    help="How long to wait for the lock; 0 tries once. Default: hoodoo.lock.deadline.ms.",
)
@click.option(
    "--kill-after",
    type=_Seconds(min=0, max=3_600),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Between SIGTERM and SIGKILL, when the lock is lost.",
)
@click.option("--purpose", help="Shown to whoever waits; the command's name by default.")
@reading
def run(
    invocation: Invocation,
    *,
    address: str | None,
    wait: float | None,
    kill_after: float,
    purpose: str | None,
) -> None:
    """
    Run COMMAND while holding the lock of TABLE (or of hoodie.base.path), as flock(1) does.

    Exit code: the command's own; 4 when the lock could not be had in time, and 1 when it was
    lost, after which the command gets SIGTERM, then SIGKILL.
    """
    command: list[str] = click.get_current_context().meta.get(_WithCommand.MARK, [])
    if not command:
        raise click.UsageError("write the command behind a lone --, as in: run TABLE -- make x")
    chosen = address or invocation.layers.load().get("hoodie.base.path")
    if not chosen:
        raise click.UsageError("name TABLE, or hoodie.base.path in a --props file")
    # A command may well take longer than a publication; nobody is to be alarmed by that.
    code: dict[str, object] = {"hoodoo.lock.hold.budget.ms": 0}
    if wait is not None:
        code["hoodoo.lock.deadline.ms"] = round(wait * 1000)
    with invocation.open_table(chosen, code) as opened:
        lock = opened.context.ports.lock
        with lock.acquire(purpose or f"locks run {command[0]}") as lease:
            ended = run_under(lease, command, kill_after_seconds=kill_after)
    if ended in (NOT_FOUND, CANNOT_RUN):
        invocation.printer.remark(f"exit code {ended}: {command[0]}")
    raise click.exceptions.Exit(ended)


# ---- shared


def _lock_of(opened: Table) -> ProviderLock:
    return _provider_lock(opened.context.ports.lock)


def _provider_lock(lock: object) -> ProviderLock:
    if not isinstance(lock, ProviderLock):
        raise InvalidInputError("this table's lock was not made from properties")
    return lock


def _as_ms(moment: TimeArgument | None, zone: TimelineZone) -> int | None:
    return None if moment is None else zone.wall_ms(parse_time_travel(moment, zone))


def _text(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
