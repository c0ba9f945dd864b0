"""
Run pages as the tests do: ``python -m tests.docs docs/tutorial.md``.

All pages run in this process and share its Spark session, if they need one. Each begins with an
empty folder. ``--with`` names the services that are there: spark starts by itself, a server is at
the address that ``--replace`` gives for its address on the page.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.docs.page import PageError, read_page
from tests.docs.running import PageRun, SnippetError, environment

SPARK_DEFAULTS = """\
spark.master local[2]
spark.ui.enabled false
spark.ui.showConsoleProgress false
spark.driver.memory 1g
spark.driver.host 127.0.0.1
spark.driver.extraJavaOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
spark.sql.codegen.wholeStage false
spark.sql.codegen.factoryMode NO_CODEGEN
spark.sql.shuffle.partitions 2
spark.log.level OFF
spark.python.authenticate.socketTimeout 120s
"""


def main() -> int:
    """Run the pages of the command line; exit code 1 when one of them fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.docs", description=__doc__)
    parser.add_argument("pages", nargs="+", metavar="PAGE")
    parser.add_argument("--with", dest="services", default="", metavar="SERVICE,...")
    parser.add_argument("--replace", type=json.loads, default={}, metavar="JSON")
    parser.add_argument("--report", type=Path, help="write page -> failure as JSON")
    arguments = parser.parse_args()
    services = frozenset(filter(None, arguments.services.split(",")))
    report = arguments.report and arguments.report.resolve()
    failures: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="docs", ignore_cleanup_errors=True) as home:
        folder = (Path(home) / "page").resolve()
        folder.mkdir()
        os.chdir(folder)  # before Spark starts, whose Java keeps the folder
        _settings(Path(home))
        for name in arguments.pages:
            failure = _run(name, folder, services, arguments.replace)
            if failure is not None:
                failures[name] = failure
        os.chdir(home)
    if report:
        report.write_text(json.dumps(failures), encoding="utf-8")
    return 1 if failures else 0


def _settings(home: Path) -> None:
    conf = home / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text(SPARK_DEFAULTS, encoding="utf-8")
    os.environ.update(environment())
    os.environ.update(
        SPARK_CONF_DIR=str(conf), PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1"
    )


def _run(name: str, folder: Path, services: frozenset[str], replaced: dict[str, str]) -> str | None:
    # Tables of the page before may be open and still write, so their folders move away whole.
    old = Path(tempfile.mkdtemp(dir=folder.parent))
    for entry in folder.iterdir():
        entry.rename(old / entry.name)
    started = time.monotonic()
    try:
        page = read_page(name)
        count = PageRun(page, folder, services, replaced).run()
    except (SnippetError, PageError) as error:
        print(f"FAILED {error}")
        return str(error)
    print(f"passed {name}: {count} blocks in {time.monotonic() - started:.1f} s")
    return None


if __name__ == "__main__":
    sys.exit(main())
