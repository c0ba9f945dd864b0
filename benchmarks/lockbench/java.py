"""
Java Hudi's own providers on the same servers: one contender, driven through a pipe.

The player is the Java side of the lock oracle (``tests/interop``), which `make interop` sets up.
A question and its answer through the pipe take a while themselves; ``pipe_seconds`` says how long.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.interop.java_locks import JAVA_SIDE, java_lock_paths
from tests.servers.java import java

PREFIX = "hoodie.write.lock."
WAIT_MS = 30_000
PIPE_TURNS = 200
OPENED = ("java.lang", "java.net", "java.util", "java.nio", "sun.nio.ch", "java.util.concurrent")
HTTP = "software.amazon.awssdk.http.urlconnection.UrlConnectionSdkHttpService"


def java_properties(kind: str, port: int) -> dict[str, str]:
    """The options of Java's provider; its lock differs from ours and the bare client's."""
    address = f"127.0.0.1:{port}"
    table = {"hoodie.base.path": "s3a://lake/java", "hoodie.table.name": "java"}
    match kind:
        case "zookeeper":
            own = {"url": address, "base_path": "/bench", "lock_key": "java"}
        case "dynamodb":
            own = {
                "table": "hudi_locks",
                "partition_key": "java",
                "region": "us-east-1",
                "endpoint_url": f"http://{address}",
            }
            table |= {"hoodie.aws.access.key": "testing", "hoodie.aws.secret.key": "testing"}
            table[PREFIX + "wait_time_ms"] = "60000"
        case "hms":
            own = {"uris": f"thrift://{address}", "database": "default", "table": "java"}
            # Java's provider wants to hear of a ZooKeeper, which it does not use here.
            table |= {PREFIX + "zookeeper.url": "127.0.0.1:1", PREFIX + "zookeeper.port": "1"}
        case _:
            own = {}
            table |= {"oracle.s3.endpoint": f"http://{address}"}
    name = {"hms": "hivemetastore"}.get(kind, kind)
    return table | {f"{PREFIX}{name}.{key}": value for key, value in own.items()}


class JavaContender:
    """One JVM with one provider; ``with JavaContender(kind, properties, folder) as java``."""

    def __init__(self, kind: str, properties: Mapping[str, str], folder: Path) -> None:
        paths = java_lock_paths()
        command = [
            *(str(java()), "-Xmx256m", "-XX:+UseSerialGC"),
            *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in OPENED),
            f"-Dsoftware.amazon.awssdk.http.service.impl={HTTP}",
            "-Dlog4j2.level=ERROR",
            *("-cp", paths["cp_aws" if kind == "dynamodb" else "cp"], JAVA_SIDE.stem, "run", kind),
            *(f"{key}={value}" for key, value in properties.items()),
        ]
        surroundings = {
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        with (folder / f"java-{kind}.log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=folder,
                env=surroundings,
            )
        self._answer()

    def cycle(self) -> None:
        """Take the lock and give it back."""
        for question in ({"op": "try", "ms": WAIT_MS}, {"op": "release"}):
            said = self._ask(question)
            if not said.get("ok"):
                raise RuntimeError(f"java's provider: {said.get('error') or said}")

    def waits(self, seconds: float) -> list[float]:
        """Seconds of each taking and giving back, for so long, the pipe's share taken off."""
        pipe = self.pipe_seconds()
        end = time.monotonic() + seconds
        found = []
        while (asked := time.monotonic()) < end:
            self.cycle()
            found.append(max(0.0, time.monotonic() - asked - 2 * pipe))
        return found

    def pipe_seconds(self) -> float:
        """Median time of a question that asks for nothing."""
        sections = []
        for _ in range(PIPE_TURNS):
            asked = time.monotonic()
            self._ask({"op": "nothing"})
            sections.append(time.monotonic() - asked)
        return sorted(sections)[PIPE_TURNS // 2]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                said: dict[str, Any] = json.loads(line)
                return said
        raise RuntimeError("the java contender ended; its log has the reason")
