"""
Our lock providers behind the JSON lines that the Java lock oracle speaks.

``oracles/lock_oracle.py`` lets processes of both languages contend for one lock and reads one
JSON answer a line from each. This is our side, with the same clients and waits as a writer::

    python tests/interop/lock_command.py zookeeper hoodie.write.lock.zookeeper.url=... ...
    python tests/interop/lock_command.py --provider zookeeper --props FILE ...
    python tests/interop/lock_command.py --share storage ...  (as one holder of the shared lock)

Questions: ``try`` {ms}, ``release``, ``state``, ``close``, ``quit``, and ``counter`` {file,
times, ms, log, fresh}, which adds one to a number in a file with separate reads and writes.
``--pace-ms`` pauses about that long each time, so that a slower side gets the lock too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))  # started as a file, from anywhere

from lockproviders.acquire import (  # noqa: E402
    HeldLease,
    LockPorts,
    ProviderLock,
    WaitBudget,
)
from lockproviders.client import LockClient  # noqa: E402
from lockproviders.hookspecs import LockContext, LockProviderEntry  # noqa: E402
from lockproviders.registry import ProviderRegistry  # noqa: E402
from timeline.errors import HoodooError, LockTimeoutError  # noqa: E402
from timeline.ports.ports import LockSharing  # noqa: E402
from timeline.properties.properties_file import parse_properties  # noqa: E402
from timeline.system import NullEvents, SystemClock, SystemIds, ThreadExecutor  # noqa: E402

# The oracle's short names, with this engine's possible names for the same provider.
OTHER_NAMES = {
    "hms": ("hivemetastore",),
    "hms-sql": ("hivemetastore",),
    "hms-rows": ("hivemetastore_database",),
    "dynamodb-moto": ("dynamodb",),
    "inprocess": ("in_process",),
    "storage": ("storage", "storage_based"),
}

MEETING_S = 60.0  # long after Java has counted once


class OurSide:
    """One client of one lock, made at the first question that needs it."""

    def __init__(self, provider: str, properties: Mapping[str, str], *, shares: bool) -> None:
        self.entry = entry_of(provider)
        self._sharing = LockSharing.START if shares else LockSharing.NO
        self._properties = properties
        self._ports = LockPorts(
            clock=SystemClock(),
            ids=SystemIds(properties.get("hoodie.write.application.id", "")),
            events=NullEvents(),
            executor=ThreadExecutor(),
        )
        self._client: LockClient | None = None
        self._lease: HeldLease | None = None

    def acquire(self, wait_ms: int) -> bool:
        """Wait at most so long; False if another process has it to the end."""
        if self._client is None:
            self._client = self._new_client()
        budget = WaitBudget(
            deadline_ms=wait_ms,
            try_ms=wait_ms,
            retries=0,
            pause_ms=0,
            hold_budget_ms=0,
            poll_first_ms=self.entry.poll_first_ms,
            poll_max_ms=self.entry.poll_max_ms,
        )
        lock = ProviderLock(self.entry.name, self._client, budget=budget, ports=self._ports)
        try:
            self._lease = lock.acquire_while(lambda: True, "lock oracle", self._sharing)
        except LockTimeoutError as error:
            if error.__cause__ is not None:
                raise  # no process had it, the service did not answer
            return False
        return True

    def release(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()

    def is_held(self) -> tuple[bool, str]:
        if self._lease is None:
            return False, "not acquired"
        try:
            self._lease.assert_held()
        except HoodooError as error:
            return False, error.message
        return True, f"token {self._lease.fencing_token}, {self._lease.remaining_ms()} ms left"

    def assert_held(self) -> None:
        assert self._lease is not None
        self._lease.assert_held()

    def close(self) -> None:
        self.release()
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _new_client(self) -> LockClient:
        address = self._properties.get("hoodie.base.path", "")
        is_local = address.startswith(("/", "file:/"))
        return self.entry.factory(
            LockContext(
                properties=self._properties,
                table_identity=address.rstrip("/"),
                table_address=address,
                table_folder=address.removeprefix("file://") if is_local else None,
                clock=self._ports.clock,
                ids=self._ports.ids,
            )
        )


def entry_of(provider: str) -> LockProviderEntry:
    registry = ProviderRegistry()
    for name in (*OTHER_NAMES.get(provider, ()), provider.replace("-", "_")):
        if name in registry.known:
            return registry.find(name)
    return registry.find(provider)


def count(side: OurSide, question: Mapping[str, Any], pace_ms: int) -> dict[str, Any]:
    """The counter of the oracle: right only if every holder excludes all others."""
    file, times = Path(question["file"]), int(question["times"])
    wait_ms, fresh = int(question.get("ms", 1000)), bool(question.get("fresh", True))
    fails, worst_s, last_error = 0, 0.0, None
    for done in range(times):
        if pace_ms and done == times // 2:
            wait_for_java(Path(question["log"]))
        time.sleep(random.uniform(0.0, 2 * pace_ms / 1000))
        asked = time.monotonic()
        while True:
            try:
                if side.acquire(wait_ms):
                    break
            except HoodooError as error:
                last_error = f"{error.kind}: {error.message}"
            fails += 1
            if fails > times * 200:
                return {"ok": False, "done": done, "fails": fails, "error": last_error}
            time.sleep(random.uniform(0.005, 0.025))
        worst_s = max(worst_s, time.monotonic() - asked)
        seen = int(file.read_text(encoding="ascii"))
        time.sleep(random.uniform(0.001, 0.003))
        side.assert_held()
        file.write_text(str(seen + 1), encoding="ascii")
        if "log" in question:
            with Path(question["log"]).open("a", encoding="ascii") as log:
                log.write(f"hoodoo {os.getpid()} {seen}\n")
        side.release()
        if fresh:
            side.close()
    side.close()
    worst_ms = round(worst_s * 1000)
    return {"ok": True, "done": times, "fails": fails, "worst_wait_ms": worst_ms} | (
        {"error": last_error} if last_error else {}
    )


def wait_for_java(log: Path) -> None:
    """Wait until the other language had the lock once, so that both count in the same period."""
    until = time.monotonic() + MEETING_S
    while time.monotonic() < until:
        if log.exists() and "java" in log.read_text(encoding="ascii"):
            return
        time.sleep(0.02)


def answer(side: OurSide, question: Mapping[str, Any], pace_ms: int) -> dict[str, Any]:
    began = time.monotonic()
    try:
        match question["op"]:
            case "try":
                reply: dict[str, Any] = {"ok": side.acquire(int(question["ms"]))}
            case "release":
                side.release()
                reply = {"ok": True}
            case "state":
                held, why = side.is_held()
                reply = {"ok": held, "lock": why}
            case "close":
                side.close()
                reply = {"ok": True}
            case "counter":
                reply = count(side, question, pace_ms)
            case other:
                reply = {"ok": False, "error": f"unknown op {other}"}
    except HoodooError as error:
        reply = {"ok": False, "error": f"{error.kind}: {error.message}"}
    reply.setdefault("ms", round((time.monotonic() - began) * 1000))
    return reply


def arguments(words: list[str]) -> tuple[OurSide, int]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("words", nargs="*", metavar="PROVIDER key=value")
    parser.add_argument("--provider")
    parser.add_argument("--props", action="append", default=[], type=Path)
    parser.add_argument("--pace-ms", default=0, type=int)
    parser.add_argument("--share", action="store_true")
    given = parser.parse_args(words)
    properties: dict[str, str] = {}
    for file in given.props:
        properties.update(parse_properties(file.read_bytes(), path=str(file)))
    pairs = [word for word in given.words if "=" in word]
    names = [word for word in given.words if "=" not in word]
    properties.update(pair.split("=", 1) for pair in pairs)
    named = given.provider or (names[0] if names else "")
    provider = named or properties.get("hoodie.write.lock.provider", "")
    return OurSide(provider, properties, shares=given.share), given.pace_ms


def main(words: list[str]) -> None:
    side, pace_ms = arguments(words)

    def say(reply: Mapping[str, Any]) -> None:
        print(json.dumps(reply), flush=True)

    say({"ready": True, "pid": os.getpid(), "impl": f"hoodoo {side.entry.name}"})
    for line in sys.stdin:
        question = json.loads(line)
        if question["op"] == "quit":
            break
        say(answer(side, question, pace_ms))
    os._exit(0)  # like a process that ends without giving anything back


if __name__ == "__main__":
    main(sys.argv[1:])
