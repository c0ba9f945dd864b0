"""
SLOT-7 in reverse: slots that the commit log has are not hidden; a truncation may leave old slots.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import hoodoo
from tests.unit.hoodoo.verify.test_hash_links import (
    FEW,
    HASH,
    KEY,
    Properties,
    check,
    digest,
    document,
    keyed,
    made,
    problems_of,
    slot_file,
    truncation_point,
)
from timeline.codecs.commit_log import TruncationPoint, encode_truncation_point

pytestmark = pytest.mark.spec("SLOT-7")


@pytest.fixture(params=["hash", "hmac"])
def sealed(request: pytest.FixtureRequest, tmp_path: Path) -> Properties:
    return HASH if request.param == "hash" else keyed(tmp_path, KEY)


@pytest.mark.spec("GC-2")
def test_missing_slots_below_a_forged_truncation_point_are_found(
    sealed: Properties, tmp_path: Path
) -> None:
    path = made(tmp_path, *[sealed] * 5)
    time = document(slot_file(path, 2))["ct"]
    forged = TruncationPoint(number=2, time=time, digest=digest(slot_file(path, 2)))
    folder = path / ".hoodie" / ".hoodoo" / "boundary"
    folder.mkdir()
    (folder / f"{2:020d}").write_bytes(encode_truncation_point(forged))
    for number in (1, 2):
        slot_file(path, number).unlink()
    assert not check(path, sealed).ok


@pytest.mark.spec("GC-2")
def test_a_truncation_point_under_a_greater_name_is_refused(tmp_path: Path) -> None:
    """A writer that counts from there would take a number that no reader reads."""
    path = made(tmp_path, *[FEW] * 6)
    with hoodoo.open_table(path, properties=FEW) as table:
        table.services.archive()
    moved = truncation_point(path).parent / f"{100:020d}"
    moved.write_bytes(truncation_point(path).read_bytes())
    found = check(path, FEW)
    assert not found.ok
    assert "contains number" in str(found.problems)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
@pytest.mark.parametrize("data", [False, True], ids=["its timeline files", "its data, too"])
def test_a_removed_commit_is_missed_by_its_slot(
    sealed: Properties, tmp_path: Path, number: int, data: bool
) -> None:
    path = made(tmp_path, *[sealed] * 4)
    time = document(slot_file(path, number))["rt"]
    gone = list((path / ".hoodie" / "timeline").glob(f"{time}*"))
    gone += path.glob(f"*_{time}.parquet") if data else []
    for file in gone:
        file.unlink()
    assert ("slot_without_instant", str(number)) in problems_of(check(path, sealed))


def test_a_missing_completed_file_is_reported_unless_it_may_still_be_created(
    tmp_path: Path,
) -> None:
    """The next writer creates it for the two newest commits (PUB-3): that is a note."""
    for number, missed in ((1, True), (2, True), (3, False), (4, False)):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = made(folder, *[HASH] * 4)
        time = document(slot_file(path, number))["rt"]
        (completed,) = (path / ".hoodie" / "timeline").glob(f"{time}_*.commit")
        completed.unlink()
        found = problems_of(check(path, HASH))
        assert (("slot_without_instant", str(number)) in found) is missed
