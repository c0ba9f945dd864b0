"""
A real Kafka broker for tests, out of Maven's jars, without ZooKeeper.

The jars of ``kafka_2.13`` are fetched on first use into ``.work/``. The broker starts in some
seconds; ``restart`` kills it on its data and ports.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tests.servers import server_missing
from tests.servers.java import HOST, JvmServer, needs_java
from tests.servers.ports import free_port

VERSION = "3.9.1"
WORK = Path(__file__).resolve().parents[2] / ".work" / "kafka"
POM = """\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>hoodoo</groupId><artifactId>kafka</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
      <version>{version}</version>
    </dependency>
  </dependencies>
</project>
"""
CONFIGURATION = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
log.cleaner.enable=false
"""
#: The content that Kafka's tool for formatting writes, without another start of a JVM.
IDENTITY = (
    "version=1\nnode.id=1\ncluster.id=aG9vZG9vLWthZmthLXRlcw\ndirectory.id=aG9vZG9vLWthZmthLWRpcg\n"
)


def jars() -> Path:
    """The folder of Kafka's jars, fetched once for all test processes."""
    folder = WORK / VERSION
    if not (folder / "ready").exists():
        if shutil.which("mvn") is None:
            server_missing("no maven on the path, which fetches Kafka")
        WORK.mkdir(parents=True, exist_ok=True)
        with (WORK / "set-up.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "ready").exists():
                _fetch(folder)
    return folder


def _fetch(folder: Path) -> None:
    pom = WORK / "pom.xml"
    pom.write_text(POM.format(version=VERSION), encoding="utf-8")
    done = subprocess.run(
        ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies",
         "-DincludeScope=runtime", f"-DoutputDirectory={folder}"],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.fail(f"maven cannot fetch Kafka:\n{(done.stdout + done.stderr)[-2000:]}")
    (folder / "ready").touch()


def _answers(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=1):
            return True
    except OSError:
        return False


class KafkaServer(JvmServer):
    """
    One broker that is its own controller.

    Args:
        folder: For its data, configuration and log.
    """

    def __init__(self, folder: Path) -> None:
        needs_java()
        self.port = free_port()
        data = folder / "data"
        data.mkdir(parents=True)
        (data / "meta.properties").write_text(IDENTITY, encoding="ascii")
        configuration = folder / "server.properties"
        configuration.write_text(
            CONFIGURATION.format(port=self.port, controller=free_port(), data=data),
            encoding="ascii",
        )
        super().__init__(
            "kafka",
            folder,
            class_path=[str(jars()) + os.sep + "*"],
            main=("kafka.Kafka", str(configuration)),
            is_ready=lambda: _answers(self.port),
        )

    @property
    def address(self) -> str:
        """``host:port`` as ``bootstrap.servers`` wants it."""
        return f"{HOST}:{self.port}"

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic; the broker may still be starting."""
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.address})
        made = admin.create_topics([NewTopic(name, partitions, 1)], operation_timeout=60)
        made[name].result(90)

    def produce(self, topic: str, values: list[bytes | None], *, partitions: int) -> None:
        """Send values to the partitions in turn, and wait until all are stored."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.address, "linger.ms": 5})
        for number, value in enumerate(values):
            producer.produce(topic, value, partition=number % partitions)
        assert producer.flush(60) == 0
