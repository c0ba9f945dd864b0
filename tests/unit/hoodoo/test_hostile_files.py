"""Files below .hoodie that hoodoo did not write: refused before they are read or executed."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
import timeline.model.file_names as places
from hoodoo.configuration import Layers
from hoodoo.verify.verify import verify_at
from timeline.errors import ClockRefusedError, CorruptTableError, InvalidInputError
from timeline.model.file_names import check_size
from timeline.rollback.end_bad_slot import end_slot, find_bad_slot
from timeline.system import SystemClock

ROW = pa.table({"id": ["a"], "v": [1]})
SLOTS = ".hoodie/.hoodoo/slots"


def made(path: Path) -> hoodoo.Table:
    table = hoodoo.create_table(path / "t", schema=ROW.schema, record_key="id")
    table.upsert(ROW)
    return table


def forged(path: Path, number: int, **changes: Any) -> Path:
    """A slot that takes the next number, made of the newest one, with a fitting trailer."""
    folder = path / "t" / SLOTS
    newest = max(folder.iterdir())
    document = {**json.loads(newest.read_bytes().partition(b"\n")[0]), "n": number, **changes}
    line = json.dumps(document).encode()
    target = folder / f"{number:020d}"
    target.write_bytes(line + f"\n{zlib.crc32(line):08x} {len(line)}\n".encode())
    return target


def sparse(path: Path, size_bytes: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size_bytes)


def heads(path: Path) -> int:
    return len(list((path / "t" / SLOTS).iterdir()))


@pytest.mark.parametrize(
    "deletes",
    [[".hoodie/hoodie.properties"], ["../outside_1-0-1_20260102030405004.parquet"], ["folder"]],
)
def test_a_forged_clean_deletes_no_file_and_is_ended(tmp_path: Path, deletes: list[str]) -> None:
    with made(tmp_path) as table:
        forged(tmp_path, heads(tmp_path) + 1, kind="clean", action="clean", deletes=deletes)
    (tmp_path / "t" / "folder").mkdir()
    with hoodoo.open_table(tmp_path / "t") as table:
        with pytest.raises(CorruptTableError) as refused:
            table.upsert(ROW)
        assert refused.value.kind == "hostile_slot"
        assert (tmp_path / "t/.hoodie/hoodie.properties").exists()
        context = table.context
        found = find_bad_slot(context)
        assert found.number == heads(tmp_path)
        end_slot(context, found.number)
    with hoodoo.open_table(tmp_path / "t") as table:
        table.upsert(pa.table({"id": ["b"], "v": [2]}))
        assert table.to_arrow().num_rows == 2
        assert not verify_at(tmp_path / "t", Layers()).problems
        with pytest.raises(InvalidInputError):
            find_bad_slot(table.context)
        with pytest.raises(InvalidInputError):
            end_slot(table.context, 1)


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_a_clean_of_a_folder_or_through_a_link_is_ended(tmp_path: Path, kind: str) -> None:
    name = "f-0_1-0-1_20260102030405004.parquet"
    made(tmp_path).close()
    if kind == "folder":
        (tmp_path / "t" / name).mkdir()
        path = name
    else:
        (tmp_path / "outside").mkdir()
        (tmp_path / "outside" / name).write_bytes(b"mine")
        (tmp_path / "t" / "part").symlink_to(tmp_path / "outside")
        path = f"part/{name}"
    forged(tmp_path, heads(tmp_path) + 1, kind="clean", action="clean", deletes=[path])
    with hoodoo.open_table(tmp_path / "t") as table:
        with pytest.raises(hoodoo.HoodooError):
            table.upsert(ROW)
        end_slot(table.context, find_bad_slot(table.context).number)
    if kind == "link":
        assert (tmp_path / "outside" / name).read_bytes() == b"mine"
        (tmp_path / "t" / "part").unlink()
    with hoodoo.open_table(tmp_path / "t") as table:
        table.upsert(ROW)


@pytest.mark.parametrize("kind", ["noop", "clean", "commit"])
def test_a_slot_of_the_distant_future_is_ended_by_its_number(tmp_path: Path, kind: str) -> None:
    made(tmp_path).close()
    time, number = "29990101000000000", heads(tmp_path) + 1
    action = {"noop": "rollback"}.get(kind, kind)
    times = {"rt": time, "ct": time, "own_rt": time}
    forged(tmp_path, number, kind=kind, action=action, **times)
    with hoodoo.open_table(tmp_path / "t") as table:
        with pytest.raises(ClockRefusedError, match="end-slot"):
            table.upsert(ROW)
        with pytest.raises(InvalidInputError, match="by number"):
            find_bad_slot(table.context)
        end_slot(table.context, number)
    with hoodoo.open_table(tmp_path / "t") as table:
        table.upsert(pa.table({"id": ["b"], "v": [2]}))
        assert table.to_arrow().num_rows == 2
    assert not verify_at(tmp_path / "t", Layers()).problems


def test_a_commit_of_the_future_that_the_timeline_shows_is_never_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer's clock was wrong, or this one is."""
    made(tmp_path).close()
    monkeypatch.setattr(SystemClock, "now_ms", lambda _: 1)
    with hoodoo.open_table(tmp_path / "t") as table, pytest.raises(InvalidInputError) as refused:
        end_slot(table.context, 1)
    assert refused.value.kind == "good_slot"


@pytest.mark.parametrize("time", ["20261399000000000", "99999999999999999", "1"])
def test_a_slot_whose_time_is_no_date_is_hostile(tmp_path: Path, time: str) -> None:
    made(tmp_path).close()
    forged(tmp_path, heads(tmp_path) + 1, kind="noop", action="rollback", rt=time, own_rt=time)
    with hoodoo.open_table(tmp_path / "t") as table:
        with pytest.raises(CorruptTableError) as refused:
            table.upsert(ROW)
        assert refused.value.kind == "hostile_slot"
        end_slot(table.context, find_bad_slot(table.context).number)
        table.upsert(ROW)


def test_a_slot_of_gigabytes_is_not_read_and_is_ended(tmp_path: Path) -> None:
    made(tmp_path).close()
    number = heads(tmp_path) + 1
    sparse(tmp_path / "t" / SLOTS / f"{number:020d}", 3 << 30)
    with hoodoo.open_table(tmp_path / "t") as table:
        with pytest.raises(CorruptTableError) as refused:
            table.upsert(ROW)
        assert refused.value.kind == "file_too_large"
        assert refused.value.fields["path"].endswith(f"{number:020d}")
        end_slot(table.context, number)
        table.upsert(ROW)


def test_a_deferred_delete_outside_of_the_table_is_ignored(tmp_path: Path) -> None:
    outside = tmp_path / "f-0_1-0-1_20260102030405004.parquet"
    outside.write_bytes(b"mine")
    with made(tmp_path) as table:
        owed = tmp_path / "t/.hoodie/.hoodoo/owed"
        owed.mkdir()
        document = {"floor": "20260102030405004", "paths": [f"../{outside.name}", "/etc/passwd"]}
        (owed / f"{1:020d}").write_text(json.dumps(document))
        table.services.clean()
    assert outside.read_bytes() == b"mine"


#: A file of each kind -> the most MiB that one may have.
LARGE = {
    ".hoodie/hoodie.properties": 16,
    ".hoodie/.hoodoo/table.json": 16,
    ".hoodie/.hoodoo/writers/x.json": 1,
    ".hoodie/.hoodoo/readers/x.json": 1,
    ".hoodie/.hoodoo/owed/00000000000000000001": 512,
    ".hoodie/.hoodoo/boundary/00000000000000000001": 512,
    ".hoodie/timeline/20260102030405004.commit.requested": 512,
    ".hoodie/timeline/20260102030405004_20260102030405007.commit": 512,
    ".hoodie/timeline/history/manifest_1": 64,
    ".hoodie/timeline/history/_version_": 1,
    ".hoodie/timeline/history/00000000000000001_00000000000000002_0.parquet": 2048,
    ".hoodie/archived/.commits_.archive.1_1-0-1": 2048,
    ".hoodie/.schema/20260102030405004.schemacommit": 64,
    ".hoodie/.index_defs/index.json": 512,
    ".hoodie/.temp/20260102030405004/MARKERS0": 64,
    ".hoodie/.heartbeat/20260102030405004": 1,
    ".hoodie/.locks/table_lock.json": 1,
    ".hoodie/.bucket_index/consistent_hashing_metadata/p/00000000000000.hashing_meta": 512,
    ".hoodie/metadata/.hoodie/hoodie.properties": 2048,
    ".hoodie/anything": 512,
    ".hoodie/.hoodoo/slots/00000000000000000001": 512,
}


@pytest.mark.parametrize(("path", "mib"), LARGE.items())
def test_a_file_may_be_as_large_as_its_kind_and_no_larger(path: str, mib: int) -> None:
    check_size(path, mib << 20)
    with pytest.raises(CorruptTableError) as refused:
        check_size(path, (mib << 20) + 1)
    assert refused.value.kind == "file_too_large"
    assert refused.value.fields["path"] == path


def test_a_write_with_an_oversized_slot_commits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = pa.schema([("id", pa.string()), ("p", pa.string())])
    path = tmp_path / "t"
    with hoodoo.create_table(path, schema=schema, record_key="id", partition_by="p") as table:
        table.upsert([{"id": "a", "p": "x"}])
        monkeypatch.setattr(places, "_BYTES_MAX", ((SLOTS, 20_000), *places._BYTES_MAX))
        with pytest.raises(InvalidInputError, match="several writes") as refused:
            table.insert([{"id": str(n), "p": f"p{n}"} for n in range(40)])
        assert refused.value.kind == "commit_too_large"
        assert heads(tmp_path) == 1
        assert table.context.active().pending == ()
        table.insert([{"id": "b", "p": "p1"}])
    with hoodoo.open_table(path) as table:
        assert sorted(table.to_arrow(["id"])["id"].to_pylist()) == ["a", "b"]


def test_the_storage_checks_the_size_before_it_reads(tmp_path: Path) -> None:
    path = ".hoodie/.index_defs/index.json"
    with made(tmp_path) as table:
        sparse(tmp_path / "t" / path, 3 << 30)
        with pytest.raises(CorruptTableError) as refused:
            table.context.ports.storage.read(path)
        assert refused.value.kind == "file_too_large"
        os.truncate(tmp_path / "t" / path, 0)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("hoodoo.publish.lock", "none"),
        ("hoodoo.reader.lease.ms", "1000"),
        ("hoodoo.clock.max.ahead.ms", "999999999"),
        ("hoodoo.storage.durability", "relaxed"),
    ],
)
def test_a_tables_own_file_loosens_no_limit(tmp_path: Path, key: str, text: str) -> None:
    made(tmp_path).close()
    with (tmp_path / "t/.hoodie/hoodie.properties").open("a") as file:
        file.write(f"{key}={text}\n")
    with hoodoo.open_table(tmp_path / "t") as table:
        assert key not in table.properties
        table.upsert(ROW)
