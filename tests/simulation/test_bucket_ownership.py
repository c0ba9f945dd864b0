"""Two newcomers to the same buckets, in every interleaving: at most one is let in (OWN-1)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.engine_kit import events_of, new_world, open_table, ports_of
from tests.simulator.ports import Actor, ActorPorts
from tests.simulator.scheduler import explore
from tests.simulator.world import SimulatedSystem
from timeline import writer_registry as registry
from timeline.context import TableContext
from timeline.errors import WriterDisagreementError
from timeline.rules.bucket_ranges import EVERY_BUCKET
from timeline.writer_registry import register_process

Enter = Callable[[TableContext, str], None]


def at_once(context: TableContext, buckets: str) -> None:
    register_process(context, {}, buckets)


def after_services(context: TableContext, buckets: str) -> None:
    """It ran services first, which need no buckets."""
    register_process(context, {}).widen_buckets(buckets)


def both_entered(world: SimulatedSystem) -> list[str]:
    entered = [str(event["who"]) for event in events_of(world, "sim.entered")]
    return ["both were let in"] if len(entered) > 1 else []


def newcomers(*ways: tuple[Enter, str]) -> tuple[SimulatedSystem, list[Actor]]:
    world = new_world("own-buckets")

    def newcomer(name: str, how: Enter, buckets: str) -> Actor:
        def body(ports: ActorPorts) -> None:
            try:
                how(open_table(ports_of(ports)), buckets)
            except WriterDisagreementError:
                return
            ports.events.emit("sim.entered", who=name)
            ports.clock.sleep_ms(1)  # both must be there at the end, or one has left

        return Actor(name=name, body=body)

    return world, [newcomer(name, *way) for name, way in zip("AB", ways, strict=True)]


@pytest.mark.spec("OWN-1")
@pytest.mark.parametrize("second", [at_once, after_services])
def test_of_two_newcomers_to_one_bucket_at_least_one_is_refused(second: Enter) -> None:
    ways = (at_once, "0-4"), (second, EVERY_BUCKET if second is at_once else "4-7")
    seen = explore(lambda: newcomers(*ways), check_end=both_entered)
    assert seen.failed is None
    assert seen.complete


@pytest.mark.parametrize("second", [at_once, after_services])
def test_a_newcomer_that_compares_only_before_its_entry_is_found(
    second: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = registry._refuse_overlapping

    def only_before(context: TableContext, buckets: str, *more: object) -> None:
        shown = context.low_water_mark.entry
        if shown is None or not shown["buckets"]:
            real(context, buckets, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(registry, "_refuse_overlapping", only_before)
    ways = (at_once, "0-4"), (second, "4-7")
    seen = explore(lambda: newcomers(*ways), check_end=both_entered)
    assert seen.failed is not None
    assert "both were let in" in str(seen.failed.failure)
