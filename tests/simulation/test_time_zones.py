"""Tables whose times are in the zone of their writers, on the days when that clock is turned."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from tests.simulation.engine_kit import outside
from tests.simulation.swarm import expect_seed
from timeline.context import TableContext
from timeline.model.instant_time import SkewLimits, TimelineZone
from timeline.properties.properties_file import load_config

LOCAL = {"hoodie.table.timeline.timezone": "LOCAL"}


def zone_of(name: str) -> TimelineZone:
    return TimelineZone(name, ZoneInfo(name))


@pytest.mark.spec("TL-SUCC-1")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("name", "turned"),
    [
        ("Europe/Berlin", "2026-10-25T01:00:00+00:00"),
        ("Europe/Berlin", "2026-03-29T01:00:00+00:00"),
        ("America/New_York", "2026-11-01T06:00:00+00:00"),
        ("Australia/Lord_Howe", "2026-04-04T15:00:00+00:00"),
    ],
)
def test_every_invariant_holds_while_the_clock_of_the_table_changes(
    name: str, turned: str, seed: int
) -> None:
    start_ms = int(datetime.fromisoformat(turned).timestamp() * 1000) - 1_000
    outcome = expect_seed(
        8_000 + seed, zone=zone_of(name), start_ms=start_ms, properties=dict(LOCAL)
    )
    engine = outside(outcome.world)
    context = TableContext.of(engine, load_config(engine.storage))
    assert context.zone.name == name
    first = context.active().instants[0].requested_time
    assert first[:10] == zone_of(name).instant_time(start_ms)[:10]
    assert outcome.world.now_ms > start_ms + 1_000
    assert SkewLimits().refuse_ms < 3_600_000  # otherwise the hour that repeats would prove nothing
