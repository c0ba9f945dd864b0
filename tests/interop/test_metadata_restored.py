"""Java Hudi reads through a metadata table after our restore or rollback, and writes on (MDT-12)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hoodoo
from hoodoo.configuration import Layers
from hoodoo.verify.verify import verify_at
from tests.interop import golden_tables
from tests.interop.java import JavaOracle, JavaRefusedError
from tests.interop.test_metadata_maintained import ON, check, for_java, row

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(900)]

#: The commit to restore to keeps its instant and its files; some tables archive and clean early.
KEPT = {"hoodie.archive.automatic": "false", "hoodie.clean.automatic": "false"}
TABLES = [
    pytest.param(name, marks=[] if name == "v9_mor_ri" else pytest.mark.slow)
    for name in golden_tables.metadata_names()
]


def conf_of(java: JavaOracle, path: Path, account: dict[str, Any], **more: str) -> dict[str, str]:
    """Return Java's settings for a write with the index of the table."""
    conf = {**account["conf"], **ON, "hoodie.write.auto.upgrade": "false", **more}
    if account["conf"].get("hoodie.metadata.record.level.index.enable") == "true":
        return conf | {"hoodie.index.type": "RECORD_LEVEL_INDEX"}
    if "record_index" in java.properties(path)["hoodie.table.metadata.partitions"]:
        conf |= {"hoodie.index.type": "RECORD_INDEX", "hoodie.metadata.record.index.enable": "true"}
    return conf


def verified(path: Path) -> None:
    assert verify_at(path, Layers()).problems == ()


@pytest.mark.spec("MDT-12")
@pytest.mark.parametrize("compacted", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("name", TABLES)
def test_java_reads_and_writes_on_after_our_restore(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, name: str, compacted: bool
) -> None:
    account = golden_tables.account(name)
    java, path = java_oracle(account["hudi"]), golden_tables.unpack(name, tmp_path)
    first, *_, last = sorted(account["snapshot"], key=lambda one: one["id"])
    with hoodoo.open_table(path, properties=KEPT) as table:
        kept = table.upsert([row("kept", "p9", 1), row(first["id"], first["part"], 2)])
        table.upsert(
            [row("kept", "p9", 3), row("gone1", "p8", 4), row(last["id"], last["part"], 5)]
        )
        table.delete(keys=[{"id": first["id"], "part": first["part"]}])
    if compacted:  # Java compacts the metadata table before its write
        java.read(path, conf=ON)  # a JVM that compacts one before it reads one cannot write on
        often = {"hoodie.metadata.compact.max.delta.commits": "1"}
        conf = conf_of(java, path, account, **often, **KEPT)
        for number in (6, 7):
            java.write(path, [for_java(row("gone2", "p8", number))], conf=conf)
        assert list((path / ".hoodie/metadata/.hoodie/timeline").glob("*.commit"))
    by_hand = {"hoodoo.metadata.services.inline": "false", **KEPT}
    with hoodoo.open_table(path, properties=by_hand) as table:
        late = table.upsert([row("kept", "p9", 7), row("gone4", "p6", 7)])
        if compacted:  # so the rollback has an update, which stays after the restore (MDT-12.11)
            assert table.services.maintain_metadata_table()
        rolled_back = table.rollback(late.requested_time)
        table.restore(kept.requested_time)
        stayed = path / f".hoodie/timeline/{rolled_back.requested_time}.rollback.requested"
        assert stayed.exists() == compacted
        table.rollback(table.upsert([row("kept", "p9", 8), row("gone3", "p7", 8)]).requested_time)
    check(java, path)
    verified(path)
    often = {"hoodie.metadata.compact.max.delta.commits": "2"}
    conf = conf_of(java, path, account, **often)
    for number in (9, 10, 11):
        rows = [row("gone1", "p8", number), row(first["id"], first["part"], number)]
        java.write(path, [for_java(one) for one in rows], conf=conf)
        check(java, path)
    with hoodoo.open_table(path) as table:
        table.upsert([row("gone1", "p8", 12), row("gone3", "p7", 12)])
    check(java, path)
    verified(path)


#: What a restore by Java says at its end, and after how many commits Java compacts its metadata
#: table: before the savepoint, right after it, and in the later writes and the restore.
REFUSALS = {
    # Its clean of the metadata table deletes the base files that a savepoint needs.
    "cleaned": ("there is no base file in MDT lesser than the commit", ("1", "1", "100")),
    # It deletes a metadata table that was compacted after the savepoint only. On the way it builds
    # and compacts it again, and then it looks for the saved commit on the new timeline.
    "built_again": ("Unable to find completion time for instant", ("100", "1", "1")),
}


@pytest.mark.slow
@pytest.mark.spec("MDT-12")
@pytest.mark.parametrize("cause", REFUSALS)
def test_hoodoo_finishes_a_restore_that_java_refuses_at_its_end(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, cause: str
) -> None:
    account = golden_tables.account("v9_cow_files")
    java, path = java_oracle("1.2.0"), golden_tables.unpack("v9_cow_files", tmp_path)
    java.read(path, conf=ON)
    refusal, compacted_after = REFUSALS[cause]
    conf = {
        **conf_of(java, path, account),
        "hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS",
        "hoodie.clean.fileversions.retained": "1",
    }
    before, after, later = (
        {**conf, "hoodie.metadata.compact.max.delta.commits": commits}
        for commits in compacted_after
    )

    def write(number: int, conf: dict[str, str]) -> None:
        java.write(path, [for_java(row("kept", "p9", number))], conf=conf)

    write(1, before)
    write(2, before)
    saved = java.timeline(path)[-1]["requested"]
    java.service(path, "savepoint", saved, conf=before)
    expected = java.read(path)
    for number in (3, 4):
        write(number, after)
    for number in range(5, 9):
        write(number, later)
    with pytest.raises(JavaRefusedError, match=refusal):
        java.service(path, "restore", saved, conf=later)
    with hoodoo.open_table(path) as table:
        assert table.finish_restore() is not None
    assert java.read(path) == expected
    check(java, path)
    verified(path)
    write(9, later)
    check(java, path)
