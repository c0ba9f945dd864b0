"""The grammar of file names, both ways, over every action and state (fmt 2.2, 4.1, 5.1)."""

from __future__ import annotations

import itertools
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeline.errors import MalformedNameError
from timeline.model.file_names import (
    PENDING_SUFFIXES,
    BaseFileName,
    IOType,
    LogFileName,
    instant_file_name,
    marker_name,
    parse_base_file_name,
    parse_instant_name,
    parse_log_file_name,
    parse_marker_name,
    pending_file_names,
)
from timeline.model.instant import Action, Instant, State

GOLDEN = Path(__file__).parents[3] / "interop" / "golden"
RT, CT = "20260102030405006", "20260102030405007"
EXISTING = [
    (action, state)
    for action, state in itertools.product(Action, State)
    if (action, state) != (Action.SAVEPOINT, State.REQUESTED)
]


def instant(action: Action, state: State) -> Instant:
    completion = CT if state is State.COMPLETED else None
    return Instant(action=action, requested_time=RT, state=state, completion_time=completion)


@pytest.mark.parametrize(("action", "state"), EXISTING)
def test_every_action_and_state_is_parsed_from_its_name(action: Action, state: State):
    name = instant_file_name(instant(action, state))
    shown = action.completes_as if state is State.COMPLETED else action
    assert parse_instant_name(name) == instant(shown, state)


def test_names_of_different_states_differ():
    distinct = {instant_file_name(instant(a, s)) for a, s in EXISTING}
    completing_as_others = 3  # compaction, log compaction, clustering
    assert len(distinct) == len(EXISTING) - completing_as_others


@pytest.mark.parametrize(
    ("name", "action", "state"),
    [
        (f"{RT}.commit.requested", Action.COMMIT, State.REQUESTED),
        (f"{RT}.inflight", Action.COMMIT, State.INFLIGHT),
        (f"{RT}_{CT}.commit", Action.COMMIT, State.COMPLETED),
        (f"{RT}.deltacommit.inflight", Action.DELTACOMMIT, State.INFLIGHT),
        (f"{RT}.replacecommit.requested", Action.REPLACECOMMIT, State.REQUESTED),
        (f"{RT}.compaction.requested", Action.COMPACTION, State.REQUESTED),
        (f"{RT}.clustering.inflight", Action.CLUSTERING, State.INFLIGHT),
        (f"{RT}_{CT}.clean", Action.CLEAN, State.COMPLETED),
        (f"{RT}.savepoint.inflight", Action.SAVEPOINT, State.INFLIGHT),
        (f"{RT}_{CT}.rollback", Action.ROLLBACK, State.COMPLETED),
    ],
)
def test_golden_names(name: str, action: Action, state: State):
    assert parse_instant_name(name) == instant(action, state)
    assert instant_file_name(instant(action, state)) == name


@pytest.mark.parametrize(
    ("action", "name"),
    [
        (Action.COMPACTION, f"{RT}_{CT}.commit"),
        (Action.LOGCOMPACTION, f"{RT}_{CT}.deltacommit"),
        (Action.CLUSTERING, f"{RT}_{CT}.replacecommit"),
    ],
)
def test_a_plan_completes_under_another_name(action: Action, name: str):
    assert instant_file_name(instant(action, State.COMPLETED)) == name


def test_a_savepoint_is_never_requested():
    with pytest.raises(MalformedNameError):
        instant_file_name(instant(Action.SAVEPOINT, State.REQUESTED))
    assert pending_file_names(Action.SAVEPOINT, RT) == (f"{RT}.savepoint.inflight",)


def test_a_completed_instant_needs_its_completion_time():
    with pytest.raises(MalformedNameError):
        instant_file_name(Instant(action=Action.COMMIT, requested_time=RT, state=State.COMPLETED))


def test_an_upgraded_completed_name_takes_its_requested_time():
    parsed = parse_instant_name(f"{RT}.commit")
    assert parsed is not None
    assert (parsed.completed, parsed.completion_time, parsed.legacy) == (True, RT, True)
    assert instant_file_name(parsed) == f"{RT}.commit"


def test_pending_names_have_the_order_of_their_deletion():
    assert pending_file_names(Action.COMMIT, RT) == (f"{RT}.inflight", f"{RT}.commit.requested")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "hoodie.properties",
        f"{RT}",
        f"{RT}.",
        f"{RT}.unknown",
        f"{RT}.commit.inflight",  # Java's name has no action here
        f"{RT}_{CT}.commit.requested",
        f"{RT}_{CT}.inflight",
        f"{RT}_{CT}.compaction",
        f"{RT}_{CT}.clustering",
        f"{RT}_{CT}_{CT}.commit",
        f"{RT}_{CT}.commit.crc",
        f"{RT}_{CT}.commit.extra.more",
        f".{RT}_{CT}.commit.crc",
        f"../{RT}_{CT}.commit",
        f"{RT}_{CT}.commit\n",
        f"{RT}_{CT}.commit ",
        f"{RT}_{CT}.COMMIT",
        "2026010203040500_6.commit",
        "٢٠٢٦٠١٠٢٠٣٠٤٠٥٠٠٦.commit.requested",
    ],
)
def test_other_names_are_no_instants(name: str):
    assert parse_instant_name(name) is None


@given(st.text(max_size=60))
def test_a_parsed_instant_name_is_the_name_written(name: str):
    parsed = parse_instant_name(name)
    if parsed is not None:
        assert instant_file_name(parsed) == name


def test_every_timeline_file_of_the_golden_tables_is_known():
    strange = []
    for archive in sorted(GOLDEN.glob("v[89]_*.zip")):
        with zipfile.ZipFile(archive) as content:
            strange += [
                name
                for name in content.namelist()
                if "/.hoodie/timeline/" in f"/{name}"
                and "/history/" not in name
                and not name.endswith(("/", ".crc"))
                and "/metadata/" not in name
                and parse_instant_name(name.rpartition("/")[2]) is None
            ]
    assert strange == []


def test_the_table_of_pending_names_covers_the_product():
    assert set(PENDING_SUFFIXES) == {pair for pair in EXISTING if pair[1] is not State.COMPLETED}


BASE = f"0b4ae8ce-0_1-0-7_{RT}.parquet"
LOG = f".0b4ae8ce-0_{RT}.log.1_0-2-3"


def test_a_base_file_name_has_three_parts():
    parsed = parse_base_file_name(BASE)
    assert parsed == BaseFileName("0b4ae8ce-0", "1-0-7", RT)
    assert parsed.text == BASE


@pytest.mark.parametrize(
    "name",
    [
        BASE.replace(".parquet", ".orc"),
        BASE + ".crc",
        "." + BASE,
        "a/" + BASE,
        BASE.replace("0b4ae8ce-0", "a.b"),
        BASE.replace("0b4ae8ce-0", ".."),
        BASE.replace("0b4ae8ce-0", "a\\b"),
        BASE.replace("1-0-7", "1-0"),
        BASE.replace(RT, RT[:-1]),
        BASE + "\n",
        f"_1-0-7_{RT}.parquet",
    ],
)
def test_other_names_are_no_base_files(name: str):
    assert parse_base_file_name(name) is None


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (LOG, LogFileName("0b4ae8ce-0", RT, 1, "0-2-3")),
        (LOG + ".cdc", LogFileName("0b4ae8ce-0", RT, 1, "0-2-3", is_cdc=True)),
        (f".f_{RT}.log.12", LogFileName("f", RT, 12, "")),
    ],
)
def test_log_file_names_are_parsed_as_they_were_formatted(name: str, parts: LogFileName):
    assert parse_log_file_name(name) == parts
    assert parts.text == name


@pytest.mark.parametrize("name", [LOG[1:], LOG + ".crc", f".f_{RT}.log.x", f".f_{RT}.log", BASE])
def test_other_names_are_no_log_files(name: str):
    assert parse_log_file_name(name) is None


@pytest.mark.parametrize("data_file", [BASE, LOG])
@pytest.mark.parametrize("io_type", IOType)
def test_marker_names_are_parsed_as_they_were_formatted(data_file: str, io_type: IOType):
    assert parse_marker_name(marker_name(data_file, io_type)) == (data_file, io_type)


@pytest.mark.parametrize(
    "name",
    [
        BASE,
        f"{BASE}.marker.DELETE",
        f"{BASE}.marker.create",
        "hoodie.properties.marker.CREATE",
        f"../{BASE}.marker.CREATE",
        ".marker.CREATE",
    ],
)
def test_markers_of_anything_else_name_nothing(name: str):
    assert parse_marker_name(name) is None
