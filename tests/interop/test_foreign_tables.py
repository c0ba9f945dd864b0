"""
Tables that Java Hudi makes at random are read, written and serviced here as Java does it.

`HOODOO_FOREIGN_SEED` and `HOODOO_FOREIGN_ZONE` make the tables again that a failure names;
`HOODOO_FOREIGN_TABLES` sets how many are made with each release.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.interop.java import JavaOracle
from tests.interop.unseen.turns import STOPPED, foreign_table, take_turns

# Options of Java alone are given to both engines; ours warns that they have no effect.
_FOR_JAVA = pytest.mark.filterwarnings("ignore:no effect here")
pytestmark = [pytest.mark.jvm, pytest.mark.timeout(10_800), _FOR_JAVA]

NIGHTLY = bool(os.environ.get("HOODOO_NIGHTLY"))
#: Release of the Java Hudi that makes the tables -> how many, in CI and at night.
TABLES = {"1.2.0": (2, 26), "1.0.2": (1, 12), "0.15.0": (1, 12)}
#: Of all processes; half of the tables have times in it. At night one of them is drawn.
ZONES = ("Asia/Kolkata", "America/New_York", "Pacific/Kiritimati", "UTC")


@pytest.mark.parametrize(
    "release",
    ["1.2.0", *(pytest.param(one, marks=pytest.mark.slow) for one in ("1.0.2", "0.15.0"))],
)
def test_both_engines_take_the_same_steps_on_tables_made_by_java(
    java_oracle: Callable[..., JavaOracle],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    release: str,
) -> None:
    drawn = random.SystemRandom().randrange(1_000_000) if NIGHTLY else 1
    seed = int(os.environ.get("HOODOO_FOREIGN_SEED", drawn))
    some = int(os.environ.get("HOODOO_FOREIGN_TABLES", TABLES[release][NIGHTLY]))
    zone = os.environ.get("HOODOO_FOREIGN_ZONE") or (
        ZONES[seed % len(ZONES)] if NIGHTLY else ZONES[0]
    )
    print(f"HOODOO_FOREIGN_SEED={seed} HOODOO_FOREIGN_ZONE={zone}")
    monkeypatch.setenv("TZ", zone)
    found, stopped = {}, {}
    for number in range(seed, seed + some):
        table = foreign_table(number, release)
        ask = partial(java_oracle, zone=zone, clock=table.clock)
        if apart := take_turns(ask, release, table, tmp_path):
            early = apart[0].startswith(STOPPED)
            (stopped if early else found)[table.recipe.name] = apart
    print(f"stopped early: {json.dumps(stopped, indent=1, ensure_ascii=False)}")
    assert not found, json.dumps(found, indent=1, ensure_ascii=False)
    assert len(stopped) <= some // 2, "most tables were not judged to their end"
