"""Brings the faults of a schedule about, each until its time is over, and heals all at the end."""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.chaos.crew import Crew
from tests.chaos.faults import ON_THE_WIRE, Fault, Kind
from tests.chaos.locks import LockSide

_WIRE, _DISK, _SERVER = "the wire", "the disk", "the server"
_LATE_S_MAX = 1.0
_RESTARTS_MAX = 3  # a busy machine may be too slow for the first
_BLOCK = bytes(1 << 16)


@dataclass(slots=True, kw_only=True)
class Struck:
    """A fault that happened: its begin and the time of its heal (monotonic seconds)."""

    fault: Fault
    began: float
    healed: float = 0.0

    def as_document(self) -> dict[str, Any]:
        """For the report."""
        return {
            "kind": self.fault.kind.value,
            "target": self.fault.target,
            "amount": self.fault.amount,
            "began": round(self.began, 2),
            "healed": round(self.healed, 2),
        }


@dataclass(slots=True, kw_only=True)
class Nemesis:
    """
    One run's faults.

    Args:
        faults: Planned faults, in their order; ``go_on`` adds to it.
        crew: The processes that get them.
        side: Lock, server and wire.
        disk: Folder of the file system to fill; None if that is not possible.
        started: Monotonic time of the run's start.
    """

    faults: list[Fault]
    crew: Crew
    side: LockSide
    disk: Path | None
    started: float
    struck: list[Struck] = field(default_factory=list)
    _next: int = 0
    _open: dict[str, Struck] = field(default_factory=dict)  # by the resource it blocks
    _late_s: float = 0.0
    _restarting: threading.Thread | None = None
    _broken: list[BaseException] = field(default_factory=list)

    def act(self) -> None:
        """Start all faults that are due; called repeatedly."""
        for holds, struck in list(self._open.items()):
            if time.monotonic() >= struck.began + struck.fault.lasts_s and self._may_end(struck):
                self._heal(holds)
        while not self.has_struck_all:
            fault = self.faults[self._next]
            late_s = time.monotonic() - self.started - self._late_s - fault.starts_s
            if late_s < 0:
                break
            if late_s > _LATE_S_MAX:  # on a busy machine they start later, not all at once
                self._late_s += late_s
            self._strike(fault)
            self._next += 1
        if _DISK in self._open:
            self._fill()

    @property
    def has_struck_all(self) -> bool:
        """Whether every fault has begun; a busy machine may be late."""
        return self._next == len(self.faults)

    def go_on(self, faults: Sequence[Fault]) -> None:
        """Let more faults follow, their times counted from now."""
        passed_s = time.monotonic() - self.started - self._late_s
        self.faults += [replace(one, starts_s=one.starts_s + passed_s) for one in faults]

    def heal_all(self) -> None:
        """End all running faults."""
        if self._restarting is not None:
            self._restarting.join()
        if self._broken:
            raise self._broken[0]
        for holds in list(self._open):
            self._heal(holds)
        if self.side.proxy is not None:
            self.side.proxy.heal()

    def _strike(self, fault: Fault) -> None:
        struck = Struck(fault=fault, began=time.monotonic())
        holds = fault.target
        if fault.kind in ON_THE_WIRE:
            holds = _WIRE
        elif fault.kind is Kind.DISK:
            holds = _DISK
        elif fault.kind is Kind.CLOCK:
            holds = f"the clock of {fault.target}"
        elif fault.kind is Kind.SERVER:
            holds = _SERVER
            if holds in self._open:
                return  # it is not back yet
        self._heal(holds)  # one fault at a time holds one thing
        match fault.kind:
            case Kind.KILL:
                self.crew.kill(fault.target)
            case Kind.PAUSE:
                if not self.crew.stop(fault.target):
                    return
            case Kind.CLOCK:
                self.crew.set_clock(fault.target, int(fault.amount))
            case Kind.DISK:
                self._fill()
            case Kind.SERVER:
                # It may take half a minute, in which other things happen.
                self._restarting = threading.Thread(target=self._restart)
                self._restarting.start()
            case _:
                self._on_the_wire(fault)
        self.struck.append(struck)
        if fault.lasts_s or fault.kind is Kind.SERVER:
            self._open[holds] = struck
        else:
            struck.healed = time.monotonic()

    def _restart(self) -> None:
        assert self.side.restart is not None
        for attempt in range(_RESTARTS_MAX):
            try:
                self.side.restart()
            except BaseException as error:  # noqa: BLE001 - raised where all is healed
                if attempt + 1 == _RESTARTS_MAX:
                    self._broken.append(error)
            else:
                return

    def _may_end(self, struck: Struck) -> bool:
        server = struck.fault.kind is Kind.SERVER
        return not server or self._restarting is None or not self._restarting.is_alive()

    def _on_the_wire(self, fault: Fault) -> None:
        proxy = self.side.proxy
        assert proxy is not None
        match fault.kind:
            case Kind.CUT:
                proxy.cut()
            case Kind.REFUSE:
                proxy.refuse()
            case Kind.STALL:
                proxy.stall()
            case Kind.DELAY:
                proxy.delay(fault.amount)
            case Kind.DROP:
                proxy.drop_replies()
            case _:
                proxy.drop_one_reply()

    def _heal(self, holds: str) -> None:
        struck = self._open.pop(holds, None)
        if struck is None:
            return
        match struck.fault.kind:
            case Kind.KILL:
                self.crew.start(struck.fault.target)
            case Kind.PAUSE:
                self.crew.go_on(struck.fault.target)
            case Kind.CLOCK:
                self.crew.set_clock(struck.fault.target, 0)
            case Kind.DISK:
                self._filler.unlink(missing_ok=True)
            case Kind.SERVER:
                pass  # it has started again
            case _:
                assert self.side.proxy is not None
                self.side.proxy.heal()
        struck.healed = time.monotonic()

    @property
    def _filler(self) -> Path:
        assert self.disk is not None
        return self.disk / "filler"

    def _fill(self) -> None:
        """Take every byte that is free, also those that others gave back since."""
        with contextlib.ExitStack() as stack:
            out = stack.enter_context(self._filler.open("ab", buffering=0))
            size = len(_BLOCK)
            while size >= 1:
                try:
                    out.write(_BLOCK[:size])
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    size //= 16
