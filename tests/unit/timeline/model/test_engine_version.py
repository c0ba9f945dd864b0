"""Each slot, plan and registry entry names the least engine version that may apply it (REL-1)."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import pytest

from tests.unit.timeline.commit_slots import commit_slot as slot
from tests.unit.timeline.engine import Behind, StillClock, new_table, opened
from tests.unit.timeline.memory import MemoryStorage, MemoryWorld
from timeline.codecs.commit_log import decode_slot, encode_slot
from timeline.codecs.instant_avro import (
    decode_clean_plan,
    decode_compaction_plan,
    decode_requested_replace,
    encode_clean_plan,
    encode_compaction_plan,
    encode_requested_replace,
)
from timeline.context import TableContext
from timeline.errors import CorruptTableError, UnsupportedTableError, WriterDisagreementError
from timeline.model import slot as engine_version
from timeline.model.file_names import WRITERS
from timeline.model.instant import Action
from timeline.model.plans import (
    CleanerPlan,
    ClusteringPlan,
    CompactionPlan,
    RequestedReplaceMetadata,
)
from timeline.model.slot import SlotKind
from timeline.writer_registry import register_process, registered_writers

KEY = "hoodoo.least_engine_version"
THIS = engine_version.ENGINE_VERSION
NEXT = THIS + 1
Extra = dict[str, str]


def compaction(extra: Extra) -> None:
    decode_compaction_plan(encode_compaction_plan(CompactionPlan(extra_metadata=extra)), path="f")


def clustering(extra: Extra) -> None:
    plan = ClusteringPlan(extra_metadata=extra)
    data = encode_requested_replace(RequestedReplaceMetadata(clustering_plan=plan))
    decode_requested_replace(data, path="f")


def clean(extra: Extra) -> None:
    decode_clean_plan(encode_clean_plan(CleanerPlan(extra_metadata=extra)), path="f")


PLANS = pytest.mark.parametrize("decode", [compaction, clustering, clean])


def test_every_kind_of_slot_and_every_planned_action_has_a_least_version() -> None:
    assert set(engine_version.LEAST_FOR_SLOT) == set(SlotKind)
    assert set(engine_version.LEAST_FOR_PLAN) == {
        Action.COMPACTION,
        Action.LOGCOMPACTION,
        Action.CLUSTERING,
        Action.CLEAN,
    }


def test_this_release_writes_nothing_that_it_could_not_apply_itself() -> None:
    least = {*engine_version.LEAST_FOR_SLOT.values(), *engine_version.LEAST_FOR_PLAN.values()}
    assert max(least | {engine_version.LEAST_FOR_WRITER}) <= engine_version.ENGINE_VERSION


# ---------------------------------------------------------------- slots


def least_in(data: bytes) -> int:
    return int(json.loads(data.partition(b"\n")[0])["v"])


@pytest.mark.spec("SLOT-3")
@pytest.mark.parametrize("kind", SlotKind)
def test_a_slot_names_the_least_version_of_its_kind(
    kind: SlotKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = replace(slot(1), kind=kind)
    first = 2 if kind is SlotKind.METADATA else 1
    assert least_in(encode_slot(one)) == first, "any release that knows the kind may apply it"
    monkeypatch.setitem(engine_version.LEAST_FOR_SLOT, kind, 3)
    assert least_in(encode_slot(one)) == 3
    other = SlotKind.NOOP if kind is SlotKind.COMMIT else SlotKind.COMMIT
    assert least_in(encode_slot(replace(slot(1), kind=other))) == 1, "no other kind needs more"


@pytest.mark.spec("REL-2")
def test_the_content_of_one_slot_may_need_more_than_its_kind() -> None:
    assert least_in(encode_slot(replace(slot(1), least_engine_version=NEXT))) == NEXT
    assert least_in(encode_slot(slot(1))) == 1


@pytest.mark.spec("REL-3")
@pytest.mark.parametrize("action", [Action.COMPACTION, Action.LOGCOMPACTION, Action.CLUSTERING])
def test_the_slot_of_a_plan_needs_no_less_than_the_plan(
    action: Action, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(engine_version.LEAST_FOR_PLAN, action, NEXT)
    planned = replace(slot(1), kind=SlotKind.PLAN, action=action)
    assert least_in(encode_slot(planned)) == NEXT
    assert least_in(encode_slot(replace(planned, kind=SlotKind.COMMIT))) == 1, (
        "it commits the result of a plan"
    )


@pytest.mark.spec("SLOT-3")
def test_a_slot_for_a_greater_version_is_refused_with_both_versions() -> None:
    data = encode_slot(replace(slot(1), least_engine_version=NEXT))
    with pytest.raises(UnsupportedTableError, match="Upgrade hoodoo in this process") as refused:
        decode_slot(data, path="slots/1", number=1)
    assert refused.value.kind == "newer_engine"
    assert refused.value.fields == {
        "engine_version": THIS,
        "least_engine_version": NEXT,
        "path": "slots/1",
    }


@pytest.mark.spec("SLOT-3")
def test_a_process_of_that_version_applies_the_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    one = replace(slot(1), least_engine_version=NEXT)
    monkeypatch.setattr(engine_version, "ENGINE_VERSION", NEXT)
    read = decode_slot(encode_slot(one), path="applied", number=1)
    assert read == one
    assert encode_slot(read) == encode_slot(one)


@pytest.mark.spec("REL-6")
def test_unknown_fields_of_a_slot_are_ignored_at_a_known_version() -> None:
    document = json.loads(encode_slot(slot(1)).partition(b"\n")[0])
    line = json.dumps({**document, "hint": {"of": "a later release"}}).encode()
    data = line + f"\n{zlib.crc32(line):08x} {len(line)}\n".encode()
    assert decode_slot(data, path="hinted", number=1) == slot(1)


# ---------------------------------------------------------------- plans


@PLANS
@pytest.mark.spec("REL-3")
def test_a_plan_for_a_greater_version_is_refused_with_both_versions(
    decode: Callable[[Extra], None],
) -> None:
    with pytest.raises(UnsupportedTableError, match="Upgrade hoodoo in this process") as refused:
        decode({KEY: str(NEXT)})
    assert refused.value.kind == "newer_engine"
    assert refused.value.fields == {
        "engine_version": THIS,
        "least_engine_version": NEXT,
        "path": "f",
    }


@PLANS
@pytest.mark.spec("REL-1")
@pytest.mark.spec("REL-6")
def test_a_plan_without_a_version_or_with_unknown_keys_is_read(
    decode: Callable[[Extra], None],
) -> None:
    decode({})
    decode({KEY: "1", "hoodoo.of_a_later_release": "x"})


@PLANS
@pytest.mark.parametrize("text", ["", "x", "-1", "1.0", "²"])
def test_a_plan_whose_version_is_no_number_is_damaged(
    decode: Callable[[Extra], None], text: str
) -> None:
    with pytest.raises(CorruptTableError, match="is not a number"):
        decode({KEY: text})


# ---------------------------------------------------------------- registry entries


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
    """Open a table for a writer of the next release, which requires that version of all."""

    @contextmanager
    def raised() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(engine_version, "ENGINE_VERSION", NEXT)
            patch.setattr(engine_version, "LEAST_FOR_WRITER", NEXT)
            yield

    return raised


def versions(context: TableContext) -> set[tuple[int, int]]:
    return {(one.engine_version, one.least_engine_version) for one in registered_writers(context)}


@pytest.mark.spec("REL-4")
def test_a_registry_entry_names_the_engine_version_and_the_least_compatible_one() -> None:
    table = new_table()
    register_process(table.context, {})
    [name] = table.context.ports.storage.names(WRITERS)
    entry = json.loads(table.context.ports.storage.read(f"{WRITERS}/{name}"))
    assert (entry["engine_version"], entry["least_engine_version"]) == (THIS, 1)
    assert versions(table.context) == {(THIS, 1)}


@pytest.mark.spec("REL-1")
def test_an_entry_without_versions_is_of_the_first_version() -> None:
    table = new_table()
    register_process(table.context, {})
    storage = table.context.ports.storage
    path = f"{WRITERS}/{storage.names(WRITERS)[0]}"
    entry = json.loads(storage.read(path))
    del entry["engine_version"], entry["least_engine_version"]
    storage.write(path, json.dumps({**entry, "of_a_later_release": {}}).encode())
    assert versions(table.context) == {(1, 1)}
    register_process(opened(table).context, {}).unregister()


@pytest.mark.spec("REL-5")
def test_a_newer_writer_that_needs_nothing_new_works_at_the_same_time_as_an_older_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = new_table()
    with monkeypatch.context() as patch:
        patch.setattr(engine_version, "ENGINE_VERSION", NEXT)
        register_process(table.context, {})
    register_process(opened(table).context, {})
    assert versions(table.context) == {(NEXT, 1), (THIS, 1)}


@pytest.mark.spec("REL-4")
def test_an_older_writer_is_refused_while_a_live_writer_needs_a_newer_one(
    newer: Callable[[], AbstractContextManager[None]],
) -> None:
    table = new_table()
    with newer():
        register_process(table.context, {})
    older = opened(table)
    with pytest.raises(UnsupportedTableError, match="Upgrade hoodoo in this process") as refused:
        register_process(older.context, {})
    assert refused.value.kind == "newer_engine"
    assert refused.value.fields["engine_version"] == THIS
    assert refused.value.fields["least_engine_version"] == NEXT
    assert versions(table.context) == {(NEXT, NEXT)}, "the refused process leaves no entry"


@pytest.mark.spec("REL-4")
def test_a_newer_writer_is_refused_while_a_live_writer_is_too_old_for_it(
    newer: Callable[[], AbstractContextManager[None]],
) -> None:
    table = new_table()
    register_process(table.context, {})
    with newer(), pytest.raises(WriterDisagreementError, match="Upgrade hoodoo") as refused:
        register_process(opened(table).context, {})
    assert refused.value.kind == "older_writer"
    assert refused.value.fields["engine_version"] == THIS
    assert refused.value.fields["least_engine_version"] == NEXT
    assert versions(table.context) == {(THIS, 1)}, "the older writer continues"


@pytest.mark.spec("REL-4")
def test_at_least_one_of_an_older_and_a_newer_concurrent_newcomer_is_refused() -> None:
    table = new_table()
    storage = table.context.ports.storage

    class Racing(Behind):
        def write(self, path: str, data: bytes, *, durable: bool = False) -> None:
            if path.startswith(WRITERS):
                other = {**json.loads(data), "writer_id": "r", "least_engine_version": NEXT}
                self.inner.write(f"{WRITERS}/r.json", json.dumps(other).encode())
            self.inner.write(path, data, durable=durable)

    with pytest.raises(UnsupportedTableError):
        register_process(opened(table, storage=Racing(storage)).context, {})
    assert storage.names(WRITERS) == ["r.json"]


@pytest.mark.spec("REL-4")
def test_the_entry_of_a_dead_newer_writer_refuses_no_older_one(
    newer: Callable[[], AbstractContextManager[None]],
) -> None:
    clock = StillClock()
    table = new_table(MemoryStorage("memory://t", ports=MemoryWorld(clock)), clock=clock)
    with newer():
        register_process(table.context, {}).ticker.stop()
    clock.sleep_ms(table.context.limits.heartbeat.tolerated_ms + 1)
    register_process(opened(table, clock=clock).context, {}).unregister()
