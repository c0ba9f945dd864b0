"""
A real ZooKeeper for tests, single or three of them, out of PySpark's own JARs.

It starts in about half a second (an ensemble in four). Ticks are short, so that sessions of a few
seconds are allowed and a dead holder's lock is free again while a test can still wait.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.servers.java import HOST, JvmServer, needs_java, spark_jars
from tests.servers.ports import free_port

TICK_MS = 200
JARS = ("zookeeper-3*.jar", "zookeeper-jute-*.jar", "slf4j-api-*.jar", "snappy-java-*.jar")
JARS_MORE = ("metrics-core-*.jar", "netty-*.jar")
MEMBERS = 3
LEADER_SECONDS_MAX = 200.0

CONFIGURATION = """\
tickTime={tick}
initLimit=50
syncLimit=20
dataDir={data}
clientPort={port}
clientPortAddress=127.0.0.1
minSessionTimeout={shortest}
maxSessionTimeout=60000
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=*
forceSync=no
"""


def _class_path() -> list[str]:
    folder = spark_jars()
    assert folder is not None
    return [str(jar) for pattern in (*JARS, *JARS_MORE) for jar in sorted(folder.glob(pattern))]


def ask(port: int, word: str) -> str:
    """A four-letter word's answer, empty when there is none."""
    try:
        with socket.create_connection((HOST, port), timeout=1) as end:
            end.sendall(word.encode("ascii"))
            end.settimeout(2)
            parts = []
            while part := end.recv(65_536):
                parts.append(part)
            return b"".join(parts).decode("utf-8", "replace")
    except OSError:
        return ""


class ZooKeeperServer(JvmServer):
    """
    One server without an ensemble.

    Args:
        folder: For its data, configuration and log.
        lines: Further lines of ``zoo.cfg``.
        options: Further options of the JVM.
    """

    def __init__(
        self, folder: Path, *, lines: Sequence[str] = (), options: Sequence[str] = ()
    ) -> None:
        needs_java()
        self.port = free_port()
        folder.mkdir(parents=True, exist_ok=True)
        configuration = folder / "zoo.cfg"
        configuration.write_text(
            CONFIGURATION.format(
                tick=TICK_MS, shortest=2 * TICK_MS, data=folder / "data", port=self.port
            )
            + "".join(f"{line}\n" for line in lines),
            encoding="ascii",
        )
        super().__init__(
            "zookeeper",
            folder,
            class_path=_class_path(),
            main=("org.apache.zookeeper.server.ZooKeeperServerMain", str(configuration)),
            # `ruok` answers before the data is loaded, `srvr` does not.
            is_ready=lambda: "Mode: standalone" in ask(self.port, "srvr"),
            options=options,
        )

    @property
    def address(self) -> str:
        """``host:port`` as ``hoodie.write.lock.zookeeper.url`` wants it."""
        return f"{HOST}:{self.port}"

    def connections(self) -> int:
        """Connections of clients now, the asking one left out."""
        return max(0, ask(self.port, "cons").count(f"/{HOST}:") - 1)


class _Member(JvmServer):
    def __init__(self, number: int, folder: Path, port: int, servers: str) -> None:
        self.number = number
        self.port = port
        data = folder / "data"
        data.mkdir(parents=True)
        (data / "myid").write_text(str(number), encoding="ascii")
        configuration = folder / "zoo.cfg"
        configuration.write_text(
            CONFIGURATION.format(tick=TICK_MS, shortest=2 * TICK_MS, data=data, port=port)
            + servers,
            encoding="ascii",
        )
        super().__init__(
            f"zookeeper-{number}",
            folder,
            class_path=_class_path(),
            main=("org.apache.zookeeper.server.quorum.QuorumPeerMain", str(configuration)),
            is_ready=lambda: self.mode() in {"leader", "follower"},
        )

    def mode(self) -> str:
        """``leader``, ``follower`` or empty."""
        for line in ask(self.port, "srvr").splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ").strip()
        return ""


class ZooKeeperEnsemble:
    """Three servers that elect a leader; ``with ZooKeeperEnsemble(folder) as ensemble``."""

    def __init__(self, folder: Path) -> None:
        needs_java()
        servers = "".join(
            f"server.{number}={HOST}:{free_port()}:{free_port()}\n"
            for number in range(1, MEMBERS + 1)
        )
        self.members = [
            _Member(number, folder / str(number), free_port(), servers)
            for number in range(1, MEMBERS + 1)
        ]

    @property
    def address(self) -> str:
        """All members, as ``hoodie.write.lock.zookeeper.url`` wants them."""
        return ",".join(f"{HOST}:{member.port}" for member in self.members)

    def start(self) -> Self:
        """Start all and wait until each has its part."""
        for member in self.members:
            member.start(wait=False)
        for member in self.members:
            member.wait_until_ready()
        return self

    def leader(self) -> _Member:
        """The present leader; waits for an election."""
        end = time.monotonic() + LEADER_SECONDS_MAX
        while time.monotonic() < end:
            for member in self.members:
                if member.pid is not None and member.mode() == "leader":
                    return member
            time.sleep(0.05)
        pytest.fail("the ensemble elects no leader")

    def stop(self) -> None:
        """End all."""
        for member in self.members:
            member.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
