"""
The wheel and the source distribution: their content, and the behaviour of an installed hoodoo.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.page import pages, read_page
from tests.packaging.environments import ROOT, find_python, make_environment, pack_spark, run

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]
PACKAGES = {"timeline", "lockproviders", "filegroups", "tableservices", "hoodoo"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
#: Names for several other extras, or for developers.
COLLECTED = {"all", "dev", "bench"}
EXTRAS = sorted(set(PROJECT["optional-dependencies"]) - COLLECTED)
VERSIONS = ("3.11", "3.12", "3.13")
#: The pages of the documentation run under the Python of `make test`, and under this one.
SECOND_VERSION = "3.13"


@dataclass(frozen=True)
class Built:
    """Both distributions of this tree."""

    wheel: Path
    source: Path
    spark: Path  # a folder with a wheel of PySpark


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=ROOT)
    (wheel,) = folder.glob("*.whl")
    (source,) = folder.glob("*.tar.gz")
    spark = tmp_path_factory.mktemp("spark")
    pack_spark(spark)
    return Built(wheel, source, spark)


def test_wheel_holds_the_five_packages_the_licence_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        names = archive.namelist()
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        described = archive.read(metadata).decode()
        (licence,) = [name for name in names if name.endswith("/licenses/LICENSE")]
        assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES
    assert not [name for name in names if re.search(r"(^|/)(test_|conftest|benchmarks/)", name)]
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    configs = {f"hoodoo/configs/{one.name}" for one in (ROOT / "configs").glob("*.properties")}
    assert configs <= set(names)
    schemas = {f"timeline/codecs/metadata_schemas/{version}.json" for version in ("v8", "v9")}
    assert schemas <= set(names)
    assert f"Requires-Python: {PROJECT['requires-python']}" in described
    for version in VERSIONS:
        assert f"Classifier: Programming Language :: Python :: {version}" in described


def test_source_distribution_builds_the_same_wheel(built: Built, tmp_path: Path) -> None:
    with tarfile.open(built.source) as archive:
        archive.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, cwd=tree)
    assert (tmp_path / built.wheel.name).read_bytes() == built.wheel.read_bytes()


@pytest.mark.parametrize("version", VERSIONS)
def test_installed_wheel_makes_writes_and_reads_a_table(
    built: Built, tmp_path: Path, version: str
) -> None:
    python = make_environment(tmp_path / "venv", built.wheel, python=find_python(version))
    hoodoo = python.with_name("hoodoo")
    assert PROJECT["version"] in run(hoodoo, "--version")
    script = shutil.copy(Path(__file__).with_name("first_steps.py"), tmp_path)
    home = run(python, script, tmp_path / "table", cwd=tmp_path)
    assert Path(home.strip()).is_relative_to(tmp_path / "venv")
    shown = run(hoodoo, "timeline", "show", tmp_path / "table", "-o", "json", cwd=tmp_path)
    assert [one["state"] for one in json.loads(shown)["instants"]] == ["completed"] * 2


@pytest.fixture(scope="module")
def bare(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_environment(tmp_path_factory.mktemp("bare") / "venv", built.wheel)


def use(python: Path, extra: str, folder: Path) -> list[dict[str, str]]:
    script = shutil.copy(Path(__file__).with_name("use_extra.py"), folder)
    found = json.loads(run(python, script, extra, cwd=folder).splitlines()[-1])
    assert Path(found["home"]).is_relative_to(python.parents[1])
    results: list[dict[str, str]] = found["results"]
    return results


@pytest.mark.parametrize("extra", EXTRAS)
def test_extra_brings_all_that_it_promises(built: Built, tmp_path: Path, extra: str) -> None:
    wanted = f"hoodoo[{extra}] @ {built.wheel.as_uri()}"
    python = make_environment(tmp_path / "venv", wanted, wheels=built.spark)
    results = use(python, extra, tmp_path)
    assert [one for one in results if "message" in one] == []


@pytest.mark.parametrize("extra", [one for one in EXTRAS if one != "testing"])
def test_error_of_a_missing_extra_names_the_command(bare: Path, tmp_path: Path, extra: str) -> None:
    wanted = {"zookeeper-sasl": "zookeeper"}  # without either, the first one is asked for
    for one in use(bare, extra, tmp_path):
        needed = "spark" if one["use"] == "hoodoo.spark" else wanted.get(extra, extra)
        assert f"pip install 'hoodoo[{needed}]'" in one["message"], one
        assert one["kind"] in ("missing_extra", "missing_package")


def test_pages_without_services_pass_on_a_second_python(built: Built, tmp_path: Path) -> None:
    python = make_environment(
        tmp_path / "venv",
        f"hoodoo[all] @ {built.wheel.as_uri()}",
        python=find_python(SECOND_VERSION),
        wheels=built.spark,
    )
    wanted = [name for name in pages() if any(block.is_run for block in read_page(name).blocks)]
    done = subprocess.run(
        [python, "-m", "tests.docs", *wanted], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
