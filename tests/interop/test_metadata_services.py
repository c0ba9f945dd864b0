"""Java Hudi and hoodoo compact, clean and archive one metadata table by turns (MDT-8, MDT-17)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from filegroups.metadata_table.reading import MetadataTable, open_metadata_table
from tableservices.metadata_table import execute
from tests.interop import golden_tables
from tests.interop.java import JavaOracle
from tests.interop.test_metadata_maintained import ON, PARTITIONS, check, for_java, row
from tests.interop.values import comparable, encoded
from timeline.model.metadata_table import METADATA_TIMELINE

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(900)]

SERVICES = {
    "hoodie.clean.commits.retained": "1",
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
    "hoodoo.metadata.services.inline": "false",
}
TABLES = [
    pytest.param(name, marks=[] if name == "v9_mor_ri" else pytest.mark.slow)
    for name in golden_tables.metadata_names()
]


def opened(path: Path, **more: str) -> hoodoo.Table:
    return hoodoo.open_table(path, properties={**SERVICES, **more})


def metadata_of(table: hoodoo.Table) -> MetadataTable:
    context = table.context
    found = open_metadata_table(context.ports.storage, table.config, context.snapshot())
    assert found is not None
    assert found.lag.is_trusted
    return found


def listed(path: Path) -> set[tuple[str, str, int]]:
    with opened(path) as table:
        found = metadata_of(table)
        rows = found.files_of(found.partition_paths()).to_pylist()
    return {(one["partition_path"], one["name"], one["size"]) for one in rows}


def indexed(path: Path) -> dict[str, tuple[str, str]]:
    with opened(path) as table:
        found = metadata_of(table)
        if "record_index" not in found.partitions:
            return {}
        rows = pa.concat_tables(found.read("record_index")).to_pylist()
    return {one["key"]: (one["partition_path"], one["file_id"]) for one in rows}


def statistics(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """
    Return the statistics of the files that exist, by file and column.

    Bounds of a column without values are left out: a rebuild by Java 1.1 has 0 for such numbers.
    """
    there = {name for part, name, _ in listed(path) if (path / part / name).exists()}
    with opened(path) as table:
        found = metadata_of(table)
        if "column_stats" not in found.partitions:
            return {}
        rows = pa.concat_tables(found.read("column_stats")).drop(["key"]).to_pylist()
    nothing = {"min": None, "max": None}
    return {
        (one["file_name"], one["column_name"]): {
            **one,
            **(nothing if one["null_count"] == one["value_count"] else {}),
        }
        for one in rows
        if one["file_name"] in there and not one["is_deleted"]
    }


def of_compactions(path: Path) -> list[str]:
    names = (one.name for one in (path / METADATA_TIMELINE).iterdir())
    return sorted(name for name in names if name.endswith(".commit"))


def make_old(path: Path) -> None:
    """Move the compactions an hour back, so that no reader needs the slices below them."""
    for name in of_compactions(path):
        file = path / METADATA_TIMELINE / name
        os.utime(file, (file.stat().st_mtime - 3_600,) * 2)


def java_conf(account: dict[str, Any], partitions: str) -> dict[str, str]:
    conf = {**account["conf"], **ON, "hoodie.write.auto.upgrade": "false"}
    if account["conf"].get("hoodie.metadata.record.level.index.enable") == "true":
        return conf | {"hoodie.index.type": "RECORD_LEVEL_INDEX"}
    if "record_index" in partitions:
        conf |= {"hoodie.index.type": "RECORD_INDEX", "hoodie.metadata.record.index.enable": "true"}
    return conf


@pytest.mark.spec("MDT-8")
@pytest.mark.parametrize("name", TABLES)
def test_java_reads_writes_and_compacts_on_our_compaction_and_we_on_its(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, name: str
) -> None:
    account = golden_tables.account(name)
    java, path = java_oracle(account["hudi"]), golden_tables.unpack(name, tmp_path)
    partitions = java.properties(path)[PARTITIONS]
    part = min(account["snapshot"], key=lambda one: str(one["id"]))["part"]
    with opened(path) as table:
        table.upsert([row("new1", part, 35), row("new2", "p9", 3)])
        before = listed(path)
        result = table.services.maintain_metadata_table()
        assert result is not None
        assert result.file_groups > 0
    assert listed(path) == before
    check(java, path)
    conf = java_conf(account, partitions)
    theirs = {**conf, "hoodie.metadata.compact.max.delta.commits": "1"}
    compactions = len(of_compactions(path))
    for number in range(3):
        java.write(path, [for_java(row("theirs", "p9", number))], conf=theirs)
    assert len(of_compactions(path)) > compactions, "java compacted on top of ours"
    assert java.properties(path)[PARTITIONS] == partitions
    check(java, path)
    for number in range(8):
        with opened(path) as table:
            table.upsert([row("ours", "p9", number)])
            make_old(path)  # so that old slices go
            assert table.services.maintain_metadata_table() is not None
            table.services.archive()
    check(java, path)
    java.write(path, [for_java(row("theirs", "p9", 7))], conf=theirs)
    assert java.properties(path)[PARTITIONS] == partitions
    check(java, path)
    # Java's rebuild has what we have.
    mine, keys, bounds = listed(path), indexed(path), statistics(path)
    off = {**conf, "hoodie.metadata.enable": "false", "hoodie.index.type": "SIMPLE"}
    java.write(path, [for_java(row("off", "p9", 7))], conf=off)
    assert not java.properties(path)[PARTITIONS]
    java.write(path, [for_java(row("on", "p9", 7))], conf={**conf, "hoodie.index.type": "SIMPLE"})
    assert {one for one in mine if (path / one[0] / one[1]).exists()} <= listed(path)
    if again := indexed(path):
        assert {key: again.get(key) for key in keys} == keys
    if again_bounds := statistics(path):
        # Java's rebuild leaves out some log files of older slices.
        both = again_bounds.keys() & bounds.keys()
        assert both
        assert {key: again_bounds[key] for key in both} == {key: bounds[key] for key in both}


@pytest.mark.parametrize(
    "step",
    [*(pytest.param(one, marks=pytest.mark.slow) for one in ("requested", "bases")), "inflight"],
)
def test_java_completes_our_compaction_if_we_die(
    java_oracle: Callable[..., JavaOracle],
    tmp_path: Path,
    step: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    account = golden_tables.account("v9_mor_ri")
    java, path = java_oracle(account["hudi"]), golden_tables.unpack("v9_mor_ri", tmp_path)
    partitions = java.properties(path)[PARTITIONS]
    merge = execute.merge_files

    def dies(*given: Any) -> Any:
        if step != "requested":
            merge(*given)
        raise KeyboardInterrupt

    with opened(path) as table:
        table.upsert([row("new1", "p9", 35)])
        monkeypatch.setattr(execute, "merge_files", dies)
        with pytest.raises(KeyboardInterrupt):
            table.services.maintain_metadata_table()
        monkeypatch.undo()
    [requested] = [
        one
        for one in (path / METADATA_TIMELINE).iterdir()
        if one.name.endswith(".compaction.requested")
        and not list(one.parent.glob(one.name[:17] + "_*.commit"))
    ]
    if step == "inflight":
        os.close(os.open(str(requested).replace(".requested", ".inflight"), os.O_CREAT))
    conf = java_conf(account, partitions)
    java.write(path, [for_java(row("theirs", "p9", 1))], conf=conf)
    assert list(requested.parent.glob(requested.name[:17] + "_*.commit"))
    check(java, path)
    with opened(path) as table:
        table.upsert([row("ours", "p9", 2)])
        assert table.services.maintain_metadata_table() is not None
    check(java, path)


# ---- Log compaction

MERGES_LOGS = {
    "hoodie.metadata.log.compaction.enable": "true",
    "hoodie.metadata.log.compaction.blocks.threshold": "2",
    "hoodie.metadata.compact.max.delta.commits": "100",
}
#: The fields of a statistics record that add up.
SUMS = ("value_count", "null_count", "total_size", "total_uncompressed_size")
OURS_MERGES = {**MERGES_LOGS, "hoodoo.metadata.services.inline": "true"}


def check_rows(java: JavaOracle, path: Path) -> None:
    """Java sees through the metadata table the rows that we see."""
    with opened(path) as table:
        mine = encoded(table.current_state().to_arrow(with_hoodie_columns=True))
    assert comparable(java.read(path, conf=ON)) == mine


def log_compactions(path: Path, state: str) -> set[str]:
    """Return the times of log compactions with a pending file of this state."""
    ending = f".logcompaction.{state}"
    names = (one.name for one in (path / METADATA_TIMELINE).iterdir())
    return {name.removesuffix(ending) for name in names if name.endswith(ending)}


def completed(path: Path) -> set[str]:
    names = (one.name for one in (path / METADATA_TIMELINE).iterdir())
    done = {name[:17] for name in names if name.endswith(".deltacommit")}
    return done & log_compactions(path, "requested")


@pytest.mark.spec("MDT-17")
@pytest.mark.parametrize(
    "name",
    [
        "v9_mor_ri",
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in ("v9_mor_secondary", "v9a_cow_all", "v8_cow_all", "v8_mor_services")
        ),
    ],
)
def test_java_goes_on_over_our_log_compaction_and_we_over_its(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, name: str
) -> None:
    account = golden_tables.account(name)
    java, path = java_oracle(account["hudi"]), golden_tables.unpack(name, tmp_path)
    partitions = java.properties(path)[PARTITIONS]
    part = min(account["snapshot"], key=lambda one: str(one["id"]))["part"]
    with opened(path, **OURS_MERGES) as table:
        for number in range(3):
            table.upsert([row(f"new{number}", part, 35), row("new9", "p9", number)])
        table.delete(keys=[{"id": "new1", "part": part}])
    ours = completed(path)
    assert ours
    check_rows(java, path)
    conf = java_conf(account, partitions)
    for number in range(3):
        java.write(path, [for_java(row("theirs", "p9", number))], conf={**conf, **MERGES_LOGS})
    theirs = completed(path) - ours
    assert theirs, "java merged its log files with ours"
    with opened(path, **OURS_MERGES) as table:
        for number in range(2):
            table.upsert([row("ours", "p9", number), row("theirs", "p9", 50 + number)])
    assert completed(path) - ours - theirs, "we merged them again"
    before = listed(path), indexed(path), statistics(path)
    compactions = set(of_compactions(path))
    whole = {**conf, "hoodie.metadata.compact.max.delta.commits": "1"}
    java.write(path, [for_java(row("last", "p9", 9))], conf=whole)
    assert set(of_compactions(path)) - compactions, "java compacted above them"
    assert java.properties(path)[PARTITIONS] == partitions
    files, keys, bounds = listed(path), indexed(path), statistics(path)
    assert files >= before[0]
    assert {key: keys[key] for key in before[1]} == before[1]
    if before[2] and java.version != "1.2.0":
        # It adds the counts of a record to those of its copy in each merged block.
        times = {
            key: bounds[key]["value_count"] // one["value_count"] for key, one in before[2].items()
        }
        assert max(times.values()) > 1
        added = {
            key: {**one, **{name: one[name] * times[key] for name in SUMS}}
            for key, one in before[2].items()
        }
        assert {key: bounds[key] for key in added} == added
        check(java, path)
        with opened(path) as table:
            assert table.metadata.repair() == ("column_stats",)
        bounds = statistics(path)
    assert {key: bounds[key] for key in before[2]} == before[2]
    check(java, path)


@pytest.mark.spec("MDT-17")
@pytest.mark.parametrize(
    "step", ["logs", *(pytest.param(one, marks=pytest.mark.slow) for one in ("plan", "completed"))]
)
def test_java_ends_our_log_compaction_if_we_die(
    java_oracle: Callable[..., JavaOracle],
    tmp_path: Path,
    step: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    account = golden_tables.account("v9_mor_ri")
    java, path = java_oracle(account["hudi"]), golden_tables.unpack("v9_mor_ri", tmp_path)
    create = execute.create_if_absent

    def dies(*given: Any, **more: Any) -> Any:
        if step == "completed":
            create(*given, **more)
        raise KeyboardInterrupt

    with opened(path) as table:
        for number in range(3):
            table.upsert([row("new1", "p9", number)])
    with opened(path, **OURS_MERGES) as table:
        where = "merge_files" if step == "plan" else "create_if_absent"
        monkeypatch.setattr(execute, where, dies)
        with pytest.raises(KeyboardInterrupt):
            table.upsert([row("new2", "p9", 35)])
        monkeypatch.undo()
    [time] = log_compactions(path, "requested")
    assert not log_compactions(path, "inflight")
    assert completed(path) == ({time} if step == "completed" else set())
    conf = java_conf(account, java.properties(path)[PARTITIONS])
    java.write(path, [for_java(row("theirs", "p9", 1))], conf=conf)
    assert completed(path) == {time}
    check_rows(java, path)
    with opened(path, **OURS_MERGES) as table:
        for number in range(2):
            table.upsert([row("ours", "p9", number)])
        assert completed(path) > {time}
        assert table.services.maintain_metadata_table() is not None
    check_rows(java, path)


@pytest.mark.slow
def test_java_reads_a_base_file_of_the_record_index_without_a_key(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path
) -> None:
    account = golden_tables.account("v9_mor_ri")
    java, path = java_oracle(account["hudi"]), golden_tables.unpack("v9_mor_ri", tmp_path)
    partitions = java.properties(path)[PARTITIONS]
    with opened(path) as table:
        table.upsert([row("new1", "p9", 35)])
        assert table.services.maintain_metadata_table() is not None
        keys = [{"id": one["id"], "part": one["part"]} for one in table.to_arrow().to_pylist()]
        table.delete(keys=keys)
        assert table.services.maintain_metadata_table() is not None
        assert table.to_arrow().num_rows == 0
    assert indexed(path) == {}
    check(java, path)
    conf = java_conf(account, partitions)
    java.write(path, [for_java(row("theirs", "p9", 1))], conf=conf)
    check(java, path)
    assert set(indexed(path)) == {"theirs"}
