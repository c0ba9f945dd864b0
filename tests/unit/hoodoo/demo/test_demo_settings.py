"""One properties file exchanges the lock of all the demonstration's processes."""

from __future__ import annotations

import itertools
from pathlib import Path

from hoodoo.configuration import Layers
from hoodoo.demo.run import DemoSettings, _cleaner, _writer, ready_properties

MINE = DemoSettings(
    props=(ready_properties("multi_writer_zookeeper.properties"),),
    hoodie_conf=("hoodoo.lock.audit=true",),
)


def provider_of(command: list[str]) -> tuple[str | None, str | None]:
    pairs = list(itertools.pairwise(command))
    layers = Layers(
        props=tuple(value for name, value in pairs if name == "--props"),
        hoodie_conf=tuple(value for name, value in pairs if name == "--hoodie-conf"),
    )
    loaded = layers.load()
    return loaded.get("hoodie.write.lock.provider"), loaded.get("hoodoo.lock.audit")


def writer(settings: DemoSettings) -> list[str]:
    here = Path()
    return _writer("loader", here, settings, work=here, engine="local", count=1)


def test_writers_and_cleaner_take_the_lock_of_the_file() -> None:
    assert provider_of(writer(MINE)) == ("zookeeper", "true")
    assert provider_of(_cleaner(Path(), MINE)) == ("zookeeper", "true")


def test_without_a_file_the_lock_is_a_file_of_the_table() -> None:
    assert provider_of(writer(DemoSettings())) == ("filesystem", None)
    assert provider_of(_cleaner(Path(), DemoSettings())) == ("filesystem", None)


def test_the_cleaner_keeps_the_options_that_only_it_needs() -> None:
    command = _cleaner(Path(), MINE)
    loaded = Layers(props=tuple(b for a, b in itertools.pairwise(command) if a == "--props"))
    assert loaded.load().get("hoodie.clean.trigger.max.commits") == "1"
