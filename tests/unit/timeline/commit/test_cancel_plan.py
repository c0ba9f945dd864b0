"""The outcome of a plan, and the cancel of a plan (CAN-1)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.timeline.engine import Behind, files_below, heard, new_table
from tests.unit.timeline.metadata_tables import add_metadata_table
from timeline.codecs.instant_avro import encode_requested_replace
from timeline.commit.cancel_plan import (
    PlanOutcome,
    cancel_blocking_plans,
    cancel_pending_plan,
    plan_outcome,
)
from timeline.context import TableContext
from timeline.model.file_names import METADATA_TABLE, TIMELINE
from timeline.model.instant import Action, Instant, State
from timeline.model.metadata_table import METADATA_TIMELINE
from timeline.model.plans import ClusteringPlan, RequestedReplaceMetadata
from timeline.model.slot import SlotKind
from timeline.snapshot import ActiveTimeline

BEFORE, TIME, AFTER = "20260101000000100", "20260101000000500", "20260101000000900"
PLAN = Instant(action=Action.CLUSTERING, requested_time=TIME, state=State.REQUESTED)
REQUESTED, INFLIGHT = f"{TIME}.clustering.requested", f"{TIME}.clustering.inflight"


@pytest.mark.spec("CAN-1")
@pytest.mark.parametrize(
    ("names", "ended"),
    [
        pytest.param([REQUESTED, INFLIGHT], None, id="carried out"),
        pytest.param([REQUESTED], PlanOutcome.ROLLED_BACK, id="its execution was reverted"),
        pytest.param(
            [REQUESTED, INFLIGHT, f"{TIME}_{AFTER}.replacecommit"],
            PlanOutcome.COMPLETED_BY_OTHER,
            id="completed, with pending files that were not deleted",
        ),
        pytest.param([f"{BEFORE}_{BEFORE}.commit"], PlanOutcome.CANCELLED, id="gone"),
        pytest.param([], PlanOutcome.CANCELLED, id="missing on a timeline without a write"),
        pytest.param([f"{AFTER}_{AFTER}.commit"], PlanOutcome.COMPLETED_BY_OTHER, id="archived"),
    ],
)
def test_plan_outcome_follows_from_the_files_of_the_plan(
    names: list[str], ended: PlanOutcome | None
) -> None:
    assert plan_outcome(ActiveTimeline.of(names), PLAN) is ended


def planned(*, inflight: bool = False) -> TableContext:
    context = new_table().context
    body = encode_requested_replace(RequestedReplaceMetadata(clustering_plan=ClusteringPlan()))
    context.ports.storage.create(f"{TIMELINE}/{REQUESTED}", body)
    if inflight:
        context.ports.storage.create(f"{TIMELINE}/{INFLIGHT}", b"")
    return context


@pytest.mark.spec("CAN-1")
@pytest.mark.parametrize("inflight", [False, True])
def test_a_plan_is_cancelled_once(inflight: bool) -> None:
    context = planned(inflight=inflight)
    slot = cancel_pending_plan(context, PLAN)
    assert slot is not None
    assert (slot.kind, slot.action, slot.requested_time) == (
        SlotKind.CANCEL,
        Action.CLUSTERING,
        TIME,
    )
    assert context.active().pending == ()
    events = [{"action": "clustering", "rt": TIME}]
    assert heard(context, "service.cancelled") == events
    assert cancel_pending_plan(context, PLAN) is None
    assert heard(context, "service.cancelled") == events


@pytest.mark.spec("MDT-7")
def test_a_cancel_takes_a_started_plan_out_of_the_metadata_table() -> None:
    context = planned(inflight=True)
    storage = context.ports.storage
    add_metadata_table(storage)
    before = files_below(storage, METADATA_TABLE)
    storage.create(f"{METADATA_TABLE}/files/.files-0000-0_{TIME}.log.1_0-0-0", b"")
    storage.create(f"{METADATA_TIMELINE}/{TIME}.deltacommit.inflight", b"")
    assert cancel_pending_plan(context, PLAN) is not None
    assert files_below(storage, METADATA_TABLE) == before


class Named(Behind):
    """A lock that records the purposes of its requests."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.purposes: list[str] = []

    def acquire(self, purpose: str) -> Any:
        self.purposes.append(purpose)
        return self.inner.acquire(purpose)


def test_the_lock_purpose_names_the_cancelled_plan() -> None:
    context = planned()
    lock = Named(context.ports.lock)
    cancel_pending_plan(replace(context, ports=replace(context.ports, lock=lock)), PLAN)
    assert lock.purposes == [f"cancel {TIME}"]


@pytest.mark.spec("CL-2")
def test_a_writer_reports_the_plans_that_it_cancelled() -> None:
    context = planned()
    cancel_blocking_plans(context, [PLAN, PLAN])
    events = [(one["plan"], one["cancelled"]) for one in heard(context, "write.made_way")]
    assert events == [(TIME, True), (TIME, False)]
