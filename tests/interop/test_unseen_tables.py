"""
New tables are read as Java reads them: of every kind, and at random.

Each test makes its tables with one release of Java Hudi and compares all our answers with
its own. `HOODOO_UNSEEN_SEED` repeats the random ones of a failure.
`HOODOO_UNSEEN_TABLES` keeps tables and accounts in a folder, which a second run uses again.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.interop.java import JavaOracle
from tests.interop.unseen.answers import differences
from tests.interop.unseen.kinds import kinds
from tests.interop.unseen.recipe import Recipe, ask_newer, make
from tests.interop.unseen.walks import walk

pytestmark = [pytest.mark.jvm, pytest.mark.slow, pytest.mark.timeout(10_800)]

RELEASES = ("1.2.0", "1.0.2", "0.15.0")
NEWEST = RELEASES[0]
WALKS = 20

#: Where Java itself errs: why its answer is not ours.
FAULTS_OF_JAVA: dict[tuple[str, str], str] = {
    **dict.fromkeys(
        (
            ("1.0.2", "on_read_merg_avro_nested"),
            ("1.0.2", "on_read_merg_parquet_nested"),
        ),
        "1.0.2 forgets the values of renamed fields inside structs of rows in logs",
    ),
    **dict.fromkeys(
        (("1.2.0", "debezium_Postgres8"), ("1.2.0", "debezium_MySql8")),
        "1.2.0 merges by a payload that version 8 keeps in another way than 1.0.2, whose it is",
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    kept = os.environ.get("HOODOO_UNSEEN_TABLES")
    return Path(kept) if kept else tmp_path


@pytest.mark.parametrize("release", RELEASES)
def test_tables_of_every_kind_are_read_as_java_reads_them(
    java_oracle: Callable[..., JavaOracle], folder: Path, release: str
) -> None:
    assert_read_alike(java_oracle, release, kinds(release), folder / release)


@pytest.mark.parametrize("release", RELEASES)
def test_tables_made_at_random_are_read_as_java_reads_them(
    java_oracle: Callable[..., JavaOracle], folder: Path, release: str
) -> None:
    seed = int(os.environ.get("HOODOO_UNSEEN_SEED", random.SystemRandom().randrange(1_000_000)))
    print(f"HOODOO_UNSEEN_SEED={seed}")
    chosen = (walk(seed + number, release) for number in range(WALKS))
    assert_read_alike(java_oracle, release, chosen, folder / release)


def assert_read_alike(
    java_oracle: Callable[..., JavaOracle], release: str, recipes: Iterable[Recipe], folder: Path
) -> None:
    java, made = java_oracle(release), []
    for recipe in recipes:
        make(java, recipe, folder)
        made.append(recipe)
    found: dict[str, list[str]] = {}
    for recipe in made:
        account = ask_newer(java_oracle(NEWEST), recipe, folder)
        apart = differences(folder / recipe.name, account)
        if apart and (release, recipe.name) not in FAULTS_OF_JAVA:
            found[recipe.name] = apart
    assert not found, json.dumps(found, indent=1, ensure_ascii=False)
