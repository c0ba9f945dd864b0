"""
The documents are correct: every block of every page is run.

A page without services runs in this process. Pages that need Spark share one process and one
session. Pages that need a server run with the integration tests, with the real server.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.docs.page import ROOT, PageError, pages, read_page
from tests.docs.running import WIDTH, PageRun, SnippetError
from tests.servers.dynamodb import MotoServer, create_table
from tests.servers.hivemetastore import HiveMetastore
from tests.servers.moto_server import ACCESS_KEY, SECRET_KEY
from tests.servers.s3 import S3Server
from tests.servers.zookeeper import ZooKeeperServer

CHILD_SECONDS_MAX = 900
SERVERS = frozenset({"zookeeper", "dynamodb", "s3", "metastore"})


def needs_of(name: str) -> frozenset[str]:
    """The services that a page needs; none if it cannot be read, which its own test reports."""
    try:
        return read_page(name).needs
    except PageError:
        return frozenset()


NEEDS = {name: needs_of(name) for name in pages()}
WITH_SPARK = [name for name, needs in NEEDS.items() if "spark" in needs and not needs & SERVERS]
WITH_SERVERS = [name for name, needs in NEEDS.items() if needs & SERVERS]


def failure_of(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """Run the blocks of a page that need no service; return the failure, None when all pass."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setenv("NO_COLOR", "1")
    try:
        PageRun(read_page(name), folder).run()
    except (SnippetError, PageError) as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", sorted(NEEDS))
def test_every_block_of_a_page_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if failure := failure_of(name, tmp_path, monkeypatch):
        pytest.fail(failure, pytrace=False)


def run_in_child(
    names: list[str],
    folder: Path,
    *,
    services: frozenset[str],
    replaced: dict[str, str],
    environment: dict[str, str],
) -> dict[str, str]:
    """Run pages in a process of their own, and return the failure of each that failed."""
    report = folder / "report.json"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.docs", "--report", str(report)),
            *("--with", ",".join(sorted(services)), "--replace", json.dumps(replaced), *names),
        ],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=CHILD_SECONDS_MAX,
        check=False,
    )
    if not report.exists():
        pytest.fail(f"the process of the pages died:\n{done.stdout}{done.stderr}", pytrace=False)
    found: dict[str, str] = json.loads(report.read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def spark_failures(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """The failures of all selected pages that need Spark, from one process."""
    chosen = {
        item.callspec.params["name"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and "spark_failures" in item.fixturenames
    }
    return run_in_child(
        sorted(chosen),
        tmp_path_factory.mktemp("docs"),
        services=frozenset({"spark"}),
        replaced={},
        environment=dict(os.environ),
    )


@pytest.mark.spark
@pytest.mark.timeout(CHILD_SECONDS_MAX)
@pytest.mark.parametrize("name", WITH_SPARK)
def test_every_block_of_a_page_runs_on_spark(name: str, spark_failures: dict[str, str]) -> None:
    if name in spark_failures:
        pytest.fail(spark_failures[name], pytrace=False)


def addresses(needs: frozenset[str], folder: Path, stack: ExitStack) -> tuple[dict[str, str], str]:
    """
    Start the servers that a page needs.

    Returns:
        The addresses of pages with those of the servers, and lines of ``hudi-defaults.conf``.
    """
    replaced: dict[str, str] = {}
    lines: dict[str, str] = {}
    if "zookeeper" in needs:
        zookeeper = stack.enter_context(ZooKeeperServer(folder / "zookeeper"))
        replaced["zk1:2181,zk2:2181,zk3:2181"] = zookeeper.address
    if "metastore" in needs:
        metastore = stack.enter_context(HiveMetastore(folder / "metastore", timeout_s=20))
        replaced["thrift://metastore:9083"] = metastore.uri
    if "dynamodb" in needs:
        dynamodb = stack.enter_context(MotoServer(folder / "dynamodb"))
        create_table(dynamodb.url)
        lines["hoodie.write.lock.dynamodb.endpoint_url"] = dynamodb.url
        lines["hoodie.aws.access.key"] = ACCESS_KEY
        lines["hoodie.aws.secret.key"] = SECRET_KEY
    if "s3" in needs:
        lines |= stack.enter_context(S3Server(folder / "s3")).properties()
    return replaced, "".join(f"{key}={value}\n" for key, value in lines.items())


@pytest.mark.integration
@pytest.mark.timeout(CHILD_SECONDS_MAX)
@pytest.mark.parametrize("name", WITH_SERVERS)
def test_every_block_of_a_page_runs_with_a_server(name: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        replaced, lines = addresses(NEEDS[name], tmp_path, stack)
        defaults = tmp_path / "conf" / "hudi-defaults.conf"
        defaults.parent.mkdir()
        defaults.write_text(lines, encoding="utf-8")
        defaults.chmod(0o600)
        failures = run_in_child(
            [name],
            tmp_path,
            services=NEEDS[name],
            replaced=replaced,
            environment={**os.environ, "HUDI_CONF_DIR": str(defaults.parent)},
        )
    if failures:
        pytest.fail(failures[name], pytrace=False)
