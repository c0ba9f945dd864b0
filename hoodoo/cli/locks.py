"""``hoodoo locks``: test a lock, show and break its holders, and run a command under it."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

import click

from hoodoo.cli.instants import time_named
from hoodoo.cli.invocation import (
    PROBLEMS_FOUND,
    Command,
    CommandGroup,
    Invocation,
    changing,
    reading,
)
from hoodoo.cli.printing import wall_text
from hoodoo.factory import compose_ports
from hoodoo.table import Table
from lockproviders.acquire import ProviderLock
from lockproviders.audit import AUDIT_FOLDER, AuditedHolding, read_audit, record_break
from lockproviders.client import BreakableLockClient, describe_owner, parse_note
from lockproviders.doctor import LockExamination, examine
from timeline.errors import HoodooError, InvalidInputError, UnsafeSetupError, counted
from timeline.model.time_arguments import parse_time_travel
from timeline.ports.ports import Lease

# ---- A command under a lease, as flock(1) runs one under the lock of a file
# A lost lease ends the command. If this process dies, the kernel ends the command. So two
# commands never run at the same time.

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
    Run a command while the lease is held, forward signals to it, and return its exit code.

    Its environment has ``HOODOO_LOCK_OWNER`` and, from providers with fencing tokens,
    ``HOODOO_LOCK_TOKEN``, which other systems may check.

    Args:
        lease: A held lease; the caller releases it.
        command: Program and arguments, without a shell.
        kill_after_seconds: Time between SIGTERM and SIGKILL after the lease is lost.

    Returns:
        The command's exit code; 128 plus the number of a signal that ended it; 126 or 127
        if it could not start.

    Raises:
        LeaseLostError: The lease was lost; the command has ended.
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
    Return a hook by which the kernel ends the command when this process dies.

    The hook is made before the fork, because the child of a process with threads must do little.
    Linux only; on other systems the command outlives a killed ``locks run``.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is None or not sys.platform.startswith("linux"):
        return None

    def before_exec() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)  # the parent died meanwhile

    return before_exec


class _Forwarding:
    """Forwards the signals of this process to the command."""

    def __init__(self) -> None:
        # On a terminal the kernel sends Ctrl-C to the command itself, and job control needs
        # both in one group. Otherwise the command gets its own group, which ends as a whole.
        self.at_terminal = sys.stdin is not None and sys.stdin.isatty()
        self._process: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []
        self._before: dict[int, object] = {}

    def to(self, process: subprocess.Popen[bytes]) -> None:
        """Forward the signals that arrived during the start, and later ones."""
        self._process = process
        while self._early:
            self._send(self._early.pop(0))

    def end(self, process: subprocess.Popen[bytes], kill_after_seconds: float) -> None:
        """Send SIGTERM, then SIGKILL, to the command and to its children."""
        self._process = process
        self._send(signal.SIGTERM)
        polls_left = round(kill_after_seconds / POLL_SECONDS)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(kill_after_seconds)
        pause = threading.Event()
        while process.returncode is not None and self._is_group_left(process) and polls_left > 0:
            polls_left -= 1
            pause.wait(POLL_SECONDS)
        if process.returncode is None:
            self._send(signal.SIGKILL)
            process.wait(KILL_SECONDS_MAX)
        elif self._is_group_left(process):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def _is_group_left(self, process: subprocess.Popen[bytes]) -> bool:
        """Return whether a process of the command's own group is left; none on a terminal."""
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
            return  # it has ended

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in _FORWARDED:
                self._before[number] = signal.signal(number, self._take)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]


# ---- ``hoodoo locks``: check the lock, its holders now and before, and run commands under it

CONTENDER_DEADLINE_MS = 100
SHOWN_MAX = 1_000


@click.group(cls=CommandGroup)
def locks() -> None:
    """Test, show, break and use the table lock."""


# ---- doctor


@locks.command()
@click.argument("address", metavar="TABLE")
@click.option(
    "--expire-within",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    metavar="SECONDS",
    help="Wait for the end of a lease of at most this length, while the lock is held. 0: do not.",
)
@reading
def doctor(invocation: Invocation, *, address: str, expire_within: int) -> None:
    """
    Check that the lock works.

    Checks: reach, acquire, contend, release, fence, expire, clock. The command takes the lock of
    the table briefly, or for the length of a short lease. Exit code 5 if a check fails; its
    line says what to change.
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
    without_bytecode = _packages_without_bytecode()
    if without_bytecode:
        invocation.printer.remark(
            "apart from the lock: PYTHONDONTWRITEBYTECODE is set and these packages have no byte "
            f"code: {', '.join(without_bytecode)}. Each Python process of a Spark job compiles "
            "them for one or two seconds. Unset it, or run 'python -m compileall -q' once in "
            "their site-packages"
        )
    if not found.ok:
        raise click.exceptions.Exit(PROBLEMS_FOUND)


def _packages_without_bytecode() -> list[str]:
    """Return the packages that each Python process of Spark compiles again."""
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
        ("check", "ok", "seconds", "result"),
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
    """
    Show the present holder of the lock.

    The command does not take the lock.
    """
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
        printer.line("free, as far as the provider knows")
        return
    one = _holder_document(text, now_ms)
    printer.facts(
        {
            "owner": one["owner"] or one["text"],
            "process": f"{one['pid']} on {one['host']}" if one["pid"] else None,
            "application": one["application"],
            "since": one["since"],
            "held": None if one["held_seconds"] is None else f"{one['held_seconds']:.1f} s",
            "purpose": one["purpose"],
            "alone": "no, with other writers of hoodoo" if one["shared"] else "yes",
        }
    )


def _holder_document(text: str, now_ms: int) -> dict[str, Any]:
    """Return the facts of a holder; of a Java holder only its note, as ``text``."""
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


@locks.command()
@click.argument("address", metavar="TABLE")
@click.option("--since", metavar="TIME", help="Only holders after this time.")
@click.option("--until", metavar="TIME", help="Only holders before this time.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=SHOWN_MAX,
    show_default=True,
    help="Show the newest ones.",
)
@reading
def audit(
    invocation: Invocation,
    *,
    address: str,
    since: str | None,
    until: str | None,
    limit: int,
) -> None:
    """
    List earlier holders of the lock.

    Writers record them with hoodoo.lock.audit=true. TIME is 2026-01-31T12:00, 2h or yesterday.
    """
    with invocation.open_table(address) as opened:
        storage = opened.context.ports.storage
        span = {"since_ms": _as_ms(opened, since), "until_ms": _as_ms(opened, until)}
        found = read_audit(storage, **span)[-limit:]
    printer = invocation.printer
    if not printer.for_people:
        printer.document({"holdings": [_holding_document(one) for one in found]})
        return
    if not found:
        printer.line(f"no records in {AUDIT_FOLDER}; writers make them with hoodoo.lock.audit=true")
        return
    printer.grid(
        ("since (UTC)", "held", "token", "owner", "ended", "purpose"),
        [
            (
                wall_text(one.start_ms),
                f"{one.held_ms / 1000:.3f} s",
                one.fencing_token,
                one.owner.rpartition("/")[0] or one.owner,
                f"{one.ended} by {one.by}" if one.by else one.ended,
                one.purpose
                + (f", renewed {counted(one.renewals, 'time')}" if one.renewals else ""),
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
@click.option("--owner", help="Only if this owner holds it, as 'locks holders' prints it.")
@changing
def break_lock(invocation: Invocation, *, address: str, owner: str | None) -> None:
    """
    Take the lock from a dead holder.

    Use it if you cannot wait for the end of the lease. A live holder notices the loss at its next
    renewal. Until then it can commit, for a third of its lease. The command asks first and records
    the break for 'locks audit'.
    """
    with invocation.open_table(address) as opened:
        lock = _lock_of(opened)
        ports = opened.context.ports
        client = lock.client
        if not isinstance(client, BreakableLockClient):
            holder = lock.holder()
            advice = (
                f"end that process, held by {describe_owner(holder)}"
                if holder
                else "the lock has no holder now"
            )
            raise UnsafeSetupError(
                f"the {lock.provider} lock cannot be taken away safely; it ends with its holder's "
                f"process, session or lease: {advice}",
                kind="cannot_break",
                provider=lock.provider,
            )
        text = lock.holder()
        if text is None:
            raise InvalidInputError(
                f"the lock has no holder to break: {lock.identity}",
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
                # The lock is broken. A retry would break the lock of the next holder.
                invocation.printer.remark(
                    f"the lock is broken, but not recorded for 'locks audit': {error.message}"
                )
    done = "would break" if invocation.dry_run else "broke"
    invocation.printer.result(document, f"{done} the lock of {describe_owner(text)}")


def _changed(text: str | None, wanted: str) -> InvalidInputError:
    now = "no holder" if text is None else describe_owner(text)
    return InvalidInputError(
        f"the lock has another holder, so it was not broken. 'hoodoo locks holders' shows it: "
        f"{now} instead of {wanted[:200]!a}",
        kind="holder_changed",
        holder=now,
    )


# ---- run


class _WithCommand(Command):
    """Takes everything after ``--`` as a command, with its options."""

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
    """Accepts numbers but NaN."""

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
    help="Longest wait for the lock; 0 tries once. Default: hoodoo.lock.deadline.ms.",
)
@click.option(
    "--kill-after",
    type=_Seconds(min=0, max=3_600),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between SIGTERM and SIGKILL after the lock is lost.",
)
@click.option("--purpose", help="Text for waiting writers. Default: the command's name.")
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
    Run a command under the table lock.

    It works as flock(1) does. Default of TABLE: hoodie.base.path. The exit code is that of
    COMMAND; 4 if the lock was not obtained in time, and 1 if it was lost. A lost lock ends
    COMMAND by SIGTERM, then SIGKILL.
    """
    command: list[str] = click.get_current_context().meta.get(_WithCommand.MARK, [])
    if not command:
        raise click.UsageError("write the command after --, as in: run TABLE -- make x")
    chosen = address or invocation.layers.load().get("hoodie.base.path")
    if not chosen:
        raise click.UsageError("name TABLE, or hoodie.base.path in a --props file")
    # A command may take longer than a commit, and that needs no warning.
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


def _as_ms(opened: Table, text: str | None) -> int | None:
    if text is None:
        return None
    zone = opened.context.zone
    return zone.wall_ms(parse_time_travel(time_named(opened.context, text), zone))


def _text(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
