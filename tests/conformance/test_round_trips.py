"""
The cost limit of writes on a high-latency store: requests, and how many must wait for others.

Each bound is the need of the write, request by request (protocol, section 4). An added request
fails here. ``python benchmarks/farstore/rounds.py`` lists the requests.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.farstore.rounds import METADATA, CountedStore, Requests, usual_writes

Kinds = dict[str, int]

#: Of a write whose process has the table open: rounds, requests.
BUDGET: dict[tuple[str, str], tuple[int, Kinds]] = {
    ("none", "upsert"): (10, {"PUT": 7, "GET": 6, "LIST": 4, "DELETE": 2}),
    ("none", "insert"): (10, {"PUT": 7, "GET": 6, "LIST": 4, "DELETE": 2}),
    ("none", "upsert of two partitions"): (11, {"PUT": 9, "GET": 7, "LIST": 5, "DELETE": 2}),
    ("none", "insert into a new partition"): (10, {"PUT": 8, "GET": 6, "LIST": 4, "DELETE": 2}),
    ("lock", "upsert"): (10, {"PUT": 9, "GET": 6, "LIST": 4, "DELETE": 2}),
    ("lock", "insert"): (10, {"PUT": 9, "GET": 6, "LIST": 4, "DELETE": 2}),
}


@pytest.fixture(scope="module")
def requested() -> Iterator[dict[tuple[str, str], Requests]]:
    with CountedStore() as store:
        yield {
            (lock, title): one
            for lock in ("none", "lock")
            for title, one in usual_writes(store, f"t-{lock}", lock).items()
        }


@pytest.mark.spec("PAR-1")
@pytest.mark.parametrize("write", sorted(BUDGET))
def test_a_write_makes_no_request_and_no_round_too_many(
    requested: dict[tuple[str, str], Requests], write: tuple[str, str]
) -> None:
    asked = "\n".join(request.text for request in requested[write].requests)
    assert (requested[write].rounds, requested[write].kinds) == BUDGET[write], asked


def test_opening_takes_no_more_than_two_requests(
    requested: dict[tuple[str, str], Requests],
) -> None:
    assert requested["none", "open"].kinds == {"GET": 2}


@pytest.mark.parametrize("write", ["first insert of a table", "first upsert"])
@pytest.mark.parametrize(("lock", "rounds"), [("none", 18), ("lock", 23)])
def test_the_first_write_of_a_process_registers_it_within_these_rounds(
    requested: dict[tuple[str, str], Requests], lock: str, rounds: int, write: str
) -> None:
    assert requested[lock, write].rounds <= rounds


def test_after_the_data_a_write_needs_refresh_slot_and_completed_file_only(
    requested: dict[tuple[str, str], Requests],
) -> None:
    requests = requested["none", "upsert"].requests
    data = next(one.round for one in requests if one.key.startswith("a/") and one.kind == "PUT")
    shown = next(one.round for one in requests if one.key.endswith(".commit"))
    assert shown - data == 3


NONE = "no metadata table"
INDEXED = sorted(METADATA.keys() - {NONE})
WRITES = ("upsert", "insert", "upsert of two partitions", "insert into a new partition")


@pytest.fixture(scope="module")
def maintained() -> Iterator[dict[tuple[str, str, str], dict[str, Requests]]]:
    tables = [("COPY_ON_WRITE", "none"), ("COPY_ON_WRITE", "lock"), ("MERGE_ON_READ", "lock")]
    with CountedStore() as store:
        yield {
            (kind, lock, name): usual_writes(
                store, f"{kind}-{lock}-{number}", lock, name, table_type=kind
            )
            for kind, lock in tables
            for number, name in enumerate((NONE, *INDEXED))
        }


@pytest.mark.spec("MDT-2")
@pytest.mark.spec("MDT-4")
@pytest.mark.parametrize(
    ("kind", "lock"),
    [("COPY_ON_WRITE", "none"), ("COPY_ON_WRITE", "lock"), ("MERGE_ON_READ", "lock")],
)
@pytest.mark.parametrize("metadata", INDEXED)
@pytest.mark.parametrize("write", WRITES)
def test_a_metadata_table_costs_a_write_one_round_and_reads_nothing(
    maintained: dict[tuple[str, str, str], dict[str, Requests]],
    write: str,
    kind: str,
    lock: str,
    metadata: str,
) -> None:
    without, found = (maintained[kind, lock, name][write] for name in (NONE, metadata))
    asked = "\n".join(request.text for request in found.requests)
    assert found.rounds == without.rounds + 1, asked
    more = {kind: found.kinds[kind] - without.kinds[kind] for kind in without.kinds}
    logs = sum("/metadata/" in one.key and ".log." in one.key for one in found.requests)
    assert more == {"PUT": logs + 3, "GET": 0, "LIST": 0, "DELETE": 0}, asked


@pytest.mark.spec("MDT-2")
def test_log_files_of_the_metadata_table_exist_before_the_slot(
    maintained: dict[tuple[str, str, str], dict[str, Requests]],
) -> None:
    requests = maintained["COPY_ON_WRITE", "lock", "record_index"]["insert"].requests
    [slot] = [one.round for one in requests if one.kind == "PUT" and "/slots/" in one.key]
    logs = [one.round for one in requests if "/metadata/" in one.key and ".log." in one.key]
    assert len(logs) == 14  # 1 of files, 2 and 1 of statistics, 10 of the record index
    assert set(logs) == {slot - 1}


def test_no_data_file_is_started_before_its_marker_and_the_inflight_file_exist(
    requested: dict[tuple[str, str], Requests],
) -> None:
    requests = requested["none", "upsert of two partitions"].requests
    announced = [
        one.round
        for one in requests
        if one.key.endswith(".inflight") or one.key.startswith(".hoodie/.temp/")
    ]
    data = [one.round for one in requests if one.key.endswith(".parquet") and one.kind == "PUT"]
    assert len(announced) == 4  # the inflight file, two markers, and the listing at the end
    assert sorted(announced)[2] < min(data)
