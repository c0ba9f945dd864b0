"""Every file of configs/ can be copied as it is: it loads, and nothing in it is in doubt."""

from __future__ import annotations

from pathlib import Path

import pytest

from filegroups.settings.settings import WriteSettings
from hoodoo.configuration import Layers, check
from hoodoo.services import service_options
from hoodoo.writer import agreement
from timeline.model.commit_metadata import ConcurrencyMode
from timeline.properties.options import PropertySet

FOLDER = Path(__file__).resolve().parents[2] / "configs"
FILES = sorted(FOLDER.glob("*.properties"))


def load(name: str) -> PropertySet:
    return Layers(environment={}, props=(FOLDER / name,)).load()


def test_there_are_configurations() -> None:
    assert {file.name for file in FILES} >= {
        "single_writer_local.properties",
        "multi_writer_local.properties",
        "cleaning_worker_local.properties",
    }


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_configuration_has_no_problem(file: Path) -> None:
    assert check(load(file.name), more=service_options()) == ()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_configuration_explains_itself(file: Path) -> None:
    assert file.read_text(encoding="utf-8").startswith("# ")


def test_the_cleaning_worker_agrees_with_the_writers() -> None:
    def terms(name: str) -> dict[str, str]:
        settings = WriteSettings.from_properties(load(name))
        return agreement(settings, lock_provider="filesystem", lock_identity="x")

    writers = terms("multi_writer_local.properties")
    assert writers == terms("cleaning_worker_local.properties")
    assert writers["mode"] == ConcurrencyMode.OPTIMISTIC_CONCURRENCY_CONTROL.value
