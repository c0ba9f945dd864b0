"""Hash links (SLOT-7): each way to tamper with the commit log is found, with its kind."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from hoodoo.configuration import KEY_VARIABLE, Layers
from hoodoo.verify.verify import Verification, verify_at
from tests.acceptance.cli import run

ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})
PLAIN = {
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
    "hoodoo.storage.durability": "relaxed",
}
HASH = {**PLAIN, "hoodoo.slots.tamper.evidence": "hash"}
KEY, OTHER = "k" * 32, "o" * 32
Properties = dict[str, str]


def keyed(folder: Path, *keys: str, evidence: str = "hmac") -> Properties:
    """Properties with a key file that holds these keys."""
    file = folder / f"{keys[0][0]}{len(keys)}.key"
    file.write_text("\n".join(keys))
    file.chmod(0o600)
    chosen = {"hoodoo.slots.tamper.evidence": evidence, "hoodoo.slots.tamper.key.file": str(file)}
    return {**PLAIN, **chosen}


def made(folder: Path, *writers: Properties) -> Path:
    """A table of one commit of each writer."""
    path = folder / "t"
    hoodoo.create_table(path, schema=ROWS.schema, record_key=["id"], properties=PLAIN).close()
    for properties in writers:
        with hoodoo.open_table(path, properties=properties) as table:
            table.upsert(ROWS)
    return path


def slot_file(path: Path, number: int) -> Path:
    return path / ".hoodie" / ".hoodoo" / "slots" / f"{number:020d}"


def document(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_bytes().partition(b"\n")[0])
    return found


def put(file: Path, changed: dict[str, Any]) -> None:
    """Write a slot as a careful forger does: the checksum fits."""
    line = json.dumps(changed, separators=(",", ":")).encode()
    file.write_bytes(line + f"\n{zlib.crc32(line):08x} {len(line)}\n".encode())


def edited(path: Path, number: int, **changes: Any) -> None:
    put(slot_file(path, number), {**document(slot_file(path, number)), **changes})


def linked_again(path: Path, first: int, last: int) -> None:
    """Link every slot to the one before it, as an attacker without a key can."""
    for number in range(first, last + 1):
        before = hashlib.sha256(slot_file(path, number - 1).read_bytes()).hexdigest()
        seal = document(slot_file(path, number))["seal"]
        edited(path, number, seal={**seal, "before": before})


def check(path: Path, properties: Properties | None = None, **more: Any) -> Verification:
    return verify_at(path, Layers(code=properties or {}), **more)


def problems_of(found: Verification) -> list[tuple[str, str]]:
    return [(one.kind, one.path.rpartition("/")[2].lstrip("0")) for one in found.problems]


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


# ---------------------------------------------------------------- writes


def test_without_the_option_a_slot_has_no_digest(tmp_path: Path):
    path = made(tmp_path, PLAIN)
    assert not {"seal", "mac"} & document(slot_file(path, 1)).keys()
    found = check(path)
    assert (found.problems, found.notes, found.evidence) == ((), (), None)


@pytest.mark.spec("SLOT-7")
def test_a_slot_contains_the_digests_of_the_previous_slot_and_of_its_file(tmp_path: Path):
    path = made(tmp_path, HASH, HASH)
    first, second = (document(slot_file(path, number))["seal"] for number in (1, 2))
    files = sorted((path / ".hoodie" / "timeline").glob("*.commit"))
    assert first == {"before": "0" * 64, "file": digest(files[0])}
    assert second == {"before": digest(slot_file(path, 1)), "file": digest(files[1])}


def test_an_intact_commit_log_has_a_head(tmp_path: Path):
    path = made(tmp_path, HASH, HASH, HASH)
    found = check(path, HASH)
    assert (found.problems, found.notes) == ((), ())
    head = f"3:{digest(slot_file(path, 3))}"
    assert found.as_document()["evidence"] == {"first_slot": 1, "head": head, "signed": False}


# ---------------------------------------------------------------- tampering


def test_an_edited_slot_is_found(tmp_path: Path):
    path = made(tmp_path, HASH, HASH, HASH)
    edited(path, 2, application="x")
    assert problems_of(check(path)) == [("slot_chain_broken", "3")]


def test_exchanged_slots_are_found(tmp_path: Path):
    path = made(tmp_path, HASH, HASH, HASH, HASH)
    two, three = document(slot_file(path, 2)), document(slot_file(path, 3))
    times = ("ct", "rt", "body")  # the order of times stays as it was
    put(slot_file(path, 2), {**three, "n": 2, **{key: two[key] for key in times}})
    put(slot_file(path, 3), {**two, "n": 3, **{key: three[key] for key in times}})
    assert ("slot_chain_broken", "4") in problems_of(check(path))


def test_a_removed_slot_is_found_when_the_gap_is_closed(tmp_path: Path):
    path = made(tmp_path, HASH, HASH, HASH, HASH)
    for number in (3, 4):
        put(slot_file(path, number - 1), {**document(slot_file(path, number)), "n": number - 1})
    slot_file(path, 4).unlink()
    assert problems_of(check(path)) == [("slot_chain_broken", "2"), ("slot_chain_broken", "3")]
    assert "instant_without_slot" in [kind for kind, _ in problems_of(check(path, HASH))]


def test_a_completed_file_replaced_together_with_its_slot_is_found(tmp_path: Path):
    path = made(tmp_path, HASH, HASH)
    first, second = sorted((path / ".hoodie" / "timeline").glob("*.commit"))
    second.write_bytes(first.read_bytes())
    edited(path, 2, body=base64.b64encode(first.read_bytes()).decode())
    assert ("slot_edited", "2") in problems_of(check(path))


def test_a_removed_hash_link_is_found(tmp_path: Path):
    path = made(tmp_path, HASH, HASH, HASH)
    bare = document(slot_file(path, 2))
    del bare["seal"]
    put(slot_file(path, 2), bare)
    assert problems_of(check(path)) == [("slot_chain_broken", "3")]
    linked_again(path, 3, 3)
    assert check(path).ok
    assert problems_of(check(path, HASH)) == [("slot_unsealed", "2")]


@pytest.mark.parametrize("gone", ["slot", "slot and file"])
def test_a_shortened_commit_log_is_found_by_its_remains_or_by_an_expected_head(
    tmp_path: Path, gone: str
):
    path = made(tmp_path, HASH, HASH, HASH)
    head = f"3:{digest(slot_file(path, 3))}"
    earlier = f"2:{digest(slot_file(path, 2))}"
    slot_file(path, 3).unlink()
    if gone == "slot":
        (problem,) = check(path, HASH).problems
        newest = max((path / ".hoodie" / "timeline").glob("*.commit"))
        assert (problem.kind, problem.path) == (
            "instant_without_slot",
            f".hoodie/timeline/{newest.name}",
        )
        return
    for file in sorted((path / ".hoodie" / "timeline").glob("*"))[-3:]:
        file.unlink()
    max(path.glob("*.parquet"), key=lambda file: file.stem.rpartition("_")[2]).unlink()
    assert check(path, HASH).ok  # nothing in the table shows it
    assert check(path, HASH, expect_head=earlier).ok
    assert problems_of(check(path, HASH, expect_head=head)) == [("chain_truncated", "3")]


def test_a_rewritten_commit_log_is_found_by_an_expected_head_only(tmp_path: Path):
    path = made(tmp_path, HASH, HASH, HASH)
    witness = f"2:{digest(slot_file(path, 2))}"
    edited(path, 1, application="x")
    linked_again(path, 2, 3)
    assert check(path, HASH).ok
    assert problems_of(check(path, HASH, expect_head=witness)) == [("witness_differs", "2")]


# ---------------------------------------------------------------- signatures


@pytest.mark.spec("SLOT-7")
def test_without_the_key_no_slot_can_be_rewritten(tmp_path: Path):
    signed = keyed(tmp_path, KEY)
    path = made(tmp_path, signed, signed, signed)
    assert check(path, signed).as_document()["evidence"]["signed"]
    edited(path, 1, application="x")
    linked_again(path, 2, 3)
    assert check(path).ok  # a reader without a key cannot detect it
    assert problems_of(check(path, signed)) == [
        ("slot_forged", "1"),
        ("slot_forged", "2"),
        ("slot_forged", "3"),
    ]


def test_the_newest_slot_is_protected_by_its_signature(tmp_path: Path):
    signed = keyed(tmp_path, KEY)
    path = made(tmp_path, signed, signed)
    edited(path, 2, application="x")
    assert problems_of(check(path, signed)) == [("slot_forged", "2")]


def test_a_signature_in_another_field_is_none(tmp_path: Path):
    signed = keyed(tmp_path, KEY)
    path = made(tmp_path, signed)
    moved = document(slot_file(path, 1))
    put(slot_file(path, 1), {"mac": moved.pop("mac"), **moved})
    assert problems_of(check(path, signed)) == [("slot_forged", "1")]


def test_another_key_is_distinguished_from_a_forgery(tmp_path: Path):
    path = made(tmp_path, *[keyed(tmp_path, KEY)] * 3)
    (problem,) = check(path, keyed(tmp_path, OTHER)).problems
    assert problem.kind == "slot_other_key"
    assert problem.message.endswith(": 3 slots")


def test_keys_can_be_changed(tmp_path: Path):
    both = keyed(tmp_path, OTHER, KEY)
    path = made(tmp_path, keyed(tmp_path, KEY), both)
    assert check(path, both).ok
    assert [kind for kind, _ in problems_of(check(path, keyed(tmp_path, OTHER)))] == [
        "slot_other_key"
    ]


def test_a_verify_that_requires_signatures_reports_unsigned_slots(tmp_path: Path):
    signed = keyed(tmp_path, KEY)
    path = made(tmp_path, signed, HASH)
    assert check(path, {**signed, "hoodoo.slots.tamper.evidence": "hash"}).ok
    assert problems_of(check(path, signed)) == [("slot_unsigned", "2")]


def test_the_key_is_never_stored_or_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    properties = {**PLAIN, "hoodoo.slots.tamper.evidence": "hmac"}
    path = made(tmp_path, properties)
    assert check(path, properties).as_document()["evidence"]["signed"]
    files = [file for file in path.rglob("*") if file.is_file()]
    assert not [file for file in files if KEY.encode() in file.read_bytes()]
    with hoodoo.open_table(path, properties=properties) as table:
        assert KEY not in repr(table.context.limits)


# ---------------------------------------------------------------- mixed chains


def test_writers_with_and_without_hash_links_write_one_commit_log(tmp_path: Path):
    path = made(tmp_path, PLAIN, HASH, PLAIN, keyed(tmp_path, KEY))
    found = check(path)
    assert found.ok
    assert [(one.kind, one.path[-1]) for one in found.notes] == [("slot_unsealed", "3")]
    assert found.as_document()["evidence"]["first_slot"] == 2
    assert problems_of(check(path, HASH)) == [("slot_unsealed", "3")]
    edited(path, 1, application="x")  # the first seal protects the slot before it
    assert problems_of(check(path)) == [("slot_chain_broken", "2")]


def test_required_hash_links_that_are_all_missing_are_a_problem(tmp_path: Path):
    path = made(tmp_path)
    assert check(path, HASH).ok  # nothing was written yet
    path = made(tmp_path / "more", PLAIN)
    assert problems_of(check(path, HASH)) == [("slot_unsealed", "1")]


# ---------------------------------------------------------------- collected slots

FEW = {
    **HASH,
    "hoodie.clean.automatic": "true",
    "hoodie.clean.commits.retained": "1",
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
}


@pytest.fixture
def collected(tmp_path: Path) -> Path:
    """A table whose first slots are collected; slot 1 was noted, and is gone."""
    path = made(tmp_path, *[FEW] * 6)
    with hoodoo.open_table(path, properties=FEW) as table:
        table.services.archive()
    assert not slot_file(path, 1).exists()
    return path


def truncation_point(path: Path) -> Path:
    return max((path / ".hoodie" / ".hoodoo" / "boundary").iterdir())


@pytest.mark.spec("SLOT-7")
def test_the_truncation_point_keeps_the_digest_of_the_last_truncated_slot(collected: Path):
    assert check(collected, HASH).ok
    kept = json.loads(truncation_point(collected).read_bytes())
    first = slot_file(collected, kept["number"] + 1)
    assert document(first)["seal"]["before"] == kept["digest"]
    assert check(collected, HASH, expect_head=f"{kept['number']}:{kept['digest']}").ok


def test_a_slot_truncated_long_ago_cannot_be_compared(collected: Path):
    found = check(collected, HASH, expect_head=f"1:{'a' * 64}")
    assert problems_of(found) == [("witness_collected", "1")]


def test_an_edited_truncation_point_is_found(collected: Path):
    file = truncation_point(collected)
    file.write_bytes(file.read_bytes().replace(b'"digest":"', b'"digest":"00'))
    assert [kind for kind, _ in problems_of(check(collected))] == [
        "boundary_differs",
        "slot_chain_broken",
    ]


def test_the_oldest_remaining_slot_cannot_be_replaced(collected: Path):
    number = json.loads(truncation_point(collected).read_bytes())["number"] + 1
    seal = document(slot_file(collected, number))["seal"]
    edited(collected, number, seal={**seal, "before": "a" * 64})
    assert ("slot_chain_broken", str(number)) in problems_of(check(collected))


# ---------------------------------------------------------------- the command line


def test_the_head_is_printed_and_expected_again(tmp_path: Path):
    path = made(tmp_path, HASH, HASH)
    head = run("table", "verify", path, "--output", "json").document["evidence"]["head"]
    assert head in run("table", "verify", path, "--output", "table").out.replace("\n", "")
    assert run("table", "verify", path, "--expect-head", head).exit_code == 0
    answer = run("table", "verify", path, "--output", "json", "--expect-head", f"9:{'0' * 64}")
    assert (answer.exit_code, answer.document["problems"][0]["kind"]) == (5, "chain_truncated")


@pytest.mark.parametrize("head", ["", "2", "2:abc", f"x:{'0' * 64}", f"2:{'0' * 65}"])
def test_an_invalid_head_is_refused(tmp_path: Path, head: str):
    assert run("table", "verify", made(tmp_path, HASH), "--expect-head", head).exit_code == 1


# ---------------------------------------------------------------- slots in a slot store


def test_slots_in_a_database_have_hash_links_too(tmp_path: Path):
    elsewhere = {
        **HASH,
        "hoodoo.slots.backend": "sql",
        "hoodoo.lock.sql.url": f"sqlite:///{tmp_path}/slots.db",
        "hoodoo.lock.sql.create_table": "true",
    }
    path = tmp_path / "t"
    writers: list[Callable[[], hoodoo.Table]] = [
        lambda: hoodoo.create_table(
            path, schema=ROWS.schema, record_key=["id"], properties=elsewhere
        ),
        lambda: hoodoo.open_table(path, properties=elsewhere),
    ]
    for opened in writers:
        with opened() as table:
            table.upsert(ROWS)
    found = check(path, elsewhere)
    assert (found.problems, found.as_document()["evidence"]["first_slot"]) == ((), 1)
    assert not (path / ".hoodie" / ".hoodoo" / "slots").exists()
