"""A standalone Spark cluster of one master and two workers, out of PySpark's own JARs."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import psutil

from tests.servers.java import HOST, JvmServer, listens, needs_java, spark_jars
from tests.servers.ports import free_port

WORKERS = 2
_EXECUTOR = "CoarseGrainedExecutorBackend"
_EXECUTOR_S_MAX = 60.0


class _Daemon(JvmServer):
    def __init__(
        self, name: str, folder: Path, main: tuple[str, ...], port: int, host: str = HOST
    ) -> None:
        jars = spark_jars()
        assert jars is not None
        scala = next(jars.glob("scala-library-*.jar")).stem.removeprefix("scala-library-")
        super().__init__(
            name,
            folder,
            class_path=[f"{jars}/*"],
            main=main,
            is_ready=lambda: listens(port, host),
            # Workers start executors by the files of this installation, with its Python.
            variables={
                "SPARK_HOME": str(jars.parent),
                "SPARK_SCALA_VERSION": scala.rpartition(".")[0],
                "PYSPARK_PYTHON": sys.executable,
            },
        )


class SparkCluster(ExitStack):
    """
    The cluster; ``with SparkCluster(folder) as cluster``.

    Args:
        folder: For logs and the files of executors.
        cores: Cores that each worker offers; more than the machine has is fine.
        memory_mb: Memory that each worker offers.
    """

    def __init__(self, folder: Path, *, cores: int = 4, memory_mb: int = 4096) -> None:
        super().__init__()
        needs_java()
        self._port = free_port()
        self._folder = folder
        spark = "org.apache.spark.deploy"
        ports = ("--port", str(self._port), "--webui-port", "0")
        master = (f"{spark}.master.Master", "--host", HOST, *ports)
        self._master = _Daemon("master", folder / "master", master, self._port)
        self._workers = []
        for number in range(WORKERS):
            port = free_port()
            offer = ("--cores", str(cores), "--memory", f"{memory_mb}m")
            # Spark starts no speculative attempt on the host of the first.
            host = f"127.0.0.{2 + number}"
            place = ("--host", host, "--port", str(port), "--webui-port", "0")
            worker = (f"{spark}.worker.Worker", self.master, *offer, *place)
            name = f"worker-{number}"
            self._workers.append(_Daemon(name, folder / name, worker, port, host))

    @property
    def master(self) -> str:
        """The address of the master, for sessions."""
        return f"spark://{HOST}:{self._port}"

    def kill_executor(self, application: str) -> int:
        """Kill an executor of an application by SIGKILL; return its process id."""
        end = time.monotonic() + _EXECUTOR_S_MAX
        while time.monotonic() < end:
            for pid in self._executors(application):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    return pid
            time.sleep(0.1)
        raise AssertionError(f"no executor of {application} runs")

    def _executors(self, application: str) -> list[int]:
        found = []
        for worker in self._workers:
            with suppress(psutil.Error):
                for child in psutil.Process(worker.pid).children(recursive=True):
                    line = child.cmdline()
                    if any(_EXECUTOR in part for part in line) and application in line:
                        found.append(child.pid)
        return found

    def __enter__(self) -> Self:
        self.enter_context(self._master)
        for worker in self._workers:
            self.enter_context(worker)
        return self
