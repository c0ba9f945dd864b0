"""The newest slices found by columns are those that the rules build one by one."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from filegroups.reading import file_slices, file_system_view
from filegroups.reading.file_slices import ListedFiles, SliceRules, newest_slices
from filegroups.reading.file_system_view import FileSystemView
from filegroups.reading.scan import view_of
from filegroups.table import open_reader
from tests.interop import golden_tables
from tests.unit.timeline.engine import BRISK, world_of
from tests.unit.timeline.memory import MemoryStorage
from timeline.archived import ArchivedTimes
from timeline.errors import CorruptTableError
from timeline.model.commit_metadata import FileGroupId
from timeline.model.file_slice import FileSlice, Slicing
from timeline.snapshot import ActiveTimeline, CommitReader, Snapshot
from timeline.storage.local import LocalStorage

TIMES = [f"202601010000000{number:02}" for number in range(10, 60)]
PATHS = ["", "a", "a/b", "p=é", "z"]


def rules_of(rng: random.Random, slicing: Slicing) -> SliceRules:
    """Return rules of a timeline with completed, pending and unknown instants."""
    names, replaced, pending = [], {}, {}
    for number, time in enumerate(TIMES[5:45:2]):
        done = TIMES[min(49, 6 + 2 * number + rng.randrange(12))]
        kind = rng.choice(["commit", "deltacommit", "deltacommit", "pending"])
        names += [f"{time}.inflight"] if kind == "pending" else [f"{time}_{done}.{kind}"]
    groups = [FileGroupId(path, f"g{number}-0") for path in PATHS for number in range(6)]
    for group in rng.sample(groups, 6):
        pending[group] = rng.sample(TIMES, 2)
    for group in rng.sample(groups, 4):
        replaced[group] = TIMES[20]
    snapshot = Snapshot(
        active=ActiveTimeline.of(names),
        head=0,
        commits=CommitReader(MemoryStorage()),
        as_of=rng.choice([None, *rng.sample(TIMES[20:], 2)]),
        slicing=slicing,
        history=SimpleNamespace(times=lambda: ArchivedTimes({TIMES[1]: TIMES[30]})),  # type: ignore[arg-type]
    )
    snapshot.__dict__["replaced"] = replaced  # as a commit of the snapshot would have it
    return SliceRules(
        snapshot=snapshot, pending_compactions=pending, include_replaced=rng.random() < 0.3
    )


def listings_of(rng: random.Random) -> dict[str, list[tuple[str, int]]]:
    """Return files of each kind; at most one base file of a group and instant."""
    found: dict[str, list[tuple[str, int]]] = {}
    for path in PATHS:
        names = ["notes.parquet", "g0-0_1-2_3.parquet", f".g1-0_{TIMES[9]}.log.1_0-0-0.cdc"]
        for number in range(6):
            group = f"g{number}-0"
            bases = rng.sample(TIMES[:46], rng.randrange(4))
            names += [f"{group}_{rng.randrange(9)}-0-0_{time}.parquet" for time in bases]
            logs = rng.sample(TIMES[:46], rng.choice([0, 0, 3]))
            names += [f".{group}_{time}.log.{rng.randrange(1, 4)}_0-0-0" for time in logs]
        rng.shuffle(names)
        found[path] = [(name, rng.randrange(1000)) for name in names]
    return found


def expected(
    listings: dict[str, list[tuple[str, int]]], rules: SliceRules, *, base_only: bool
) -> list[FileSlice]:
    """Return the newest slices as the rules build them, partition by partition."""
    found = []
    for path in sorted(listings):
        for slices in rules.slices(path, listings[path]).values():
            if not base_only:
                found.append(rules.newest(slices))
                continue
            based = [one for one in slices if one.base_file is not None]
            found += [replace(one, log_files=()) for one in based[-1:]]
    return found


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("slicing", Slicing)
@pytest.mark.parametrize("base_only", [False, True])
def test_columns_and_rules_find_the_same_slices(
    seed: int, slicing: Slicing, base_only: bool
) -> None:
    rng = random.Random(seed)
    rules, listings = rules_of(rng, slicing), listings_of(rng)
    wanted = expected(listings, rules, base_only=base_only)
    found = newest_slices(ListedFiles.of(listings), rules, base_only=base_only)
    assert wanted
    assert [*found] == wanted
    assert [found[place] for place in range(len(found))] == wanted
    chosen = [*range(0, len(wanted), 3)]
    assert found.take(chosen) == [wanted[place] for place in chosen]
    assert found[1:4] == wanted[1:4]
    places, paths, names = found.plain
    alone = [
        (place, one.file_group.partition_path, one.base_file.name if one.base_file else "")
        for place, one in enumerate(wanted)
        if place in places
    ]
    assert list(zip(places.tolist(), paths.to_pylist(), names.to_pylist(), strict=True)) == alone
    assert [place for place, _ in found.others] == sorted({*range(len(wanted))} - {*places})
    with_logs = [one for one in wanted if one.log_files]
    assert [*file_slices.with_logs(found)] == [*file_slices.with_logs(wanted)] == with_logs


def test_two_base_files_of_one_instant_are_refused_before_any_slice_is_read() -> None:
    rules = replace(rules_of(random.Random(1), Slicing.BY_COMPLETION), pending_compactions={})
    names = [f"g9-0_{token}-0-0_{TIMES[1]}.parquet" for token in (1, 2)]  # an archived instant
    files = ListedFiles.of({"a": [(name, 1) for name in names]})
    with pytest.raises(CorruptTableError, match="two base files of one instant"):
        newest_slices(files, rules)


@pytest.mark.parametrize("name", golden_tables.names())
def test_tables_have_the_same_slices_by_columns(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = open_reader(world_of(LocalStorage(golden_tables.unpack(name, tmp_path))), BRISK)

    def slices() -> Iterator[Sequence[FileSlice]]:
        for as_of in (None, *sorted(table.context.snapshot().completions)):
            view = view_of(table.context, replace(table.context.snapshot(), as_of=as_of))
            yield view.latest_slices()
            yield view.base_slices()

    one_by_one = [[*some] for some in slices()]
    monkeypatch.setattr(file_system_view, "_COLUMNS_MIN", 0)
    assert [[*some] for some in slices()] == one_by_one


def test_partitions_listed_at_different_times_are_joined() -> None:
    rng = random.Random(3)
    rules, listings = rules_of(rng, Slicing.BY_COMPLETION), listings_of(rng)
    parts = [{path: listings[path]} for path in ("z", "a")] + [{"": [], "a/b": listings["a/b"]}]
    joined = ListedFiles.joined([ListedFiles.of(part) for part in parts])
    together = {path: files for part in parts for path, files in part.items()}
    assert newest_slices(joined, rules) == expected(together, rules, base_only=False)
    assert joined.files(2) == listings["a/b"]


def test_a_slice_is_made_when_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = replace(rules_of(random.Random(1), Slicing.BY_COMPLETION), pending_compactions={})
    time = min(rules.snapshot.completions)
    storage = MemoryStorage()
    for number in range(600):
        storage.create(f"p/x{number:03}-0_0-0-0_{time}.parquet", b"x")
    made = []

    def noted(**values: Any) -> FileSlice:
        made.append(values["file_group"].file_id)
        return FileSlice(**values)

    monkeypatch.setattr(file_slices, "FileSlice", noted)
    view = FileSystemView(storage=storage, snapshot=replace(rules.snapshot, as_of=None))
    found = view.latest_slices(["p"])
    assert len(found) == 600
    assert not made
    assert found[7].file_group.file_id == "x007-0"
    assert made == ["x007-0"]
