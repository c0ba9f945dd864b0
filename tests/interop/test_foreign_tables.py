"""
Tables that Java Hudi makes at random are read, written and serviced here as Java does it.

`HOODOO_FOREIGN_SEED` makes the tables again that a failure names; `HOODOO_FOREIGN_TABLES` sets
how many are made with each release.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.java import JavaOracle
from tests.interop.unseen.turns import foreign_table, take_turns

# Options of Java alone are given to both engines; ours tells that they do nothing here.
_FOR_JAVA = pytest.mark.filterwarnings("ignore:no effect here")
pytestmark = [pytest.mark.jvm, pytest.mark.timeout(10_800), _FOR_JAVA]

NIGHTLY = bool(os.environ.get("HOODOO_NIGHTLY"))
#: Release of the Java Hudi that makes the tables -> how many, in CI and at night.
TABLES = {"1.2.0": (2, 26), "1.0.2": (1, 12), "0.15.0": (1, 12)}
NEWEST = "1.2.0"


@pytest.mark.parametrize("release", TABLES)
def test_both_engines_take_the_same_steps_on_tables_made_by_java(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, release: str
) -> None:
    drawn = random.SystemRandom().randrange(1_000_000) if NIGHTLY else 1
    seed = int(os.environ.get("HOODOO_FOREIGN_SEED", drawn))
    some = int(os.environ.get("HOODOO_FOREIGN_TABLES", TABLES[release][NIGHTLY]))
    print(f"HOODOO_FOREIGN_SEED={seed}")
    java, judge, found = java_oracle(release), java_oracle(NEWEST), {}
    for number in range(seed, seed + some):
        told = foreign_table(number, release)
        if apart := take_turns(java, judge, told, tmp_path):
            found[told.recipe.name] = apart
    assert not found, json.dumps(found, indent=1, ensure_ascii=False)
