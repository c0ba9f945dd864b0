"""
Table services during which an engine died: the other engine continues or finishes them.

Cleans, rollbacks and restores, of ours and of Java Hudi. Each died after its slot or its plan was
written, or after half of its work. Afterwards both engines write and clean,
read the same rows, and nothing is pending.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import hoodoo
from hoodoo.configuration import Layers
from hoodoo.verify.verify import verify_at
from tests.interop.halfway import Before, age, is_data
from tests.interop.java import JavaOracle, JavaRefusedError
from tests.interop.test_restoring import ALONE, JAVA, SCHEMA, rows, state
from timeline.errors import TableConfigConflictError
from timeline.model.instant import Action

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

LAZY = {
    "hoodie.clean.failed.writes.policy": "LAZY",
    "hoodie.cleaner.policy.failed.writes": "LAZY",
}
CONF = {**JAVA, **LAZY}
OURS = {**ALONE, **LAZY, "hoodie.clean.commits.retained": "1"}
RARE = pytest.mark.slow
RARELY = [pytest.param("1.2.0", marks=RARE), pytest.param("1.0.2", marks=RARE)]
OFTEN = ["1.2.0", pytest.param("1.0.2", marks=RARE)]


class Shared:
    """A table that both engines write, and their views of it."""

    def __init__(
        self, path: Path, java: JavaOracle, writes: int, table_type: str = "COPY_ON_WRITE"
    ) -> None:
        self.path, self.java = path, java
        self.conf = {**CONF, "hoodie.datasource.write.table.type": table_type}
        layout = {} if java.version == "1.2.0" else {"hoodie.write.table.version": "8"}
        with hoodoo.create_table(
            path,
            schema=SCHEMA,
            record_key="id",
            partition_by="p",
            table_type=table_type,
            properties={**ALONE, **layout},
        ) as table:
            for value in range(1, writes + 1):
                table.upsert(pa.Table.from_pylist(rows(value), SCHEMA))

    def open(self, properties: dict[str, str] = OURS) -> hoodoo.Table:
        return hoodoo.open_table(self.path, properties=properties)

    def write(self, value: int) -> None:
        with self.open() as table:
            table.upsert(pa.Table.from_pylist(rows(value), SCHEMA))

    def java_writes(self, value: int) -> None:
        self.java.write(self.path, rows(value), conf=self.conf)

    def java_cleans(self) -> None:
        conf = {**self.conf, "hoodie.clean.commits.retained": "1"}
        self.java.service(self.path, "clean", conf=conf)

    def expect(self, *values: int) -> None:
        """Both engines read the state after these writes."""
        found = self.java.read(self.path, columns=["id", "v"], meta=False)
        assert sorted((row["id"], row["v"]) for row in found) == state(*values)
        with self.open() as table:
            mine = table.to_arrow(columns=["id", "v"]).to_pylist()
        assert sorted((row["id"], row["v"]) for row in mine) == state(*values)

    def expect_ended(self, action: Action) -> str:
        """Nothing is pending, one instant of the action ended once; its requested time."""
        with self.open() as table:
            timeline = table.context.active()
            assert timeline.pending == ()
            [ended] = [one for one in timeline.instants if one.action is action]
        name = f"{ended.requested_time}_"
        files = [one.name for one in (self.path / ".hoodie" / "timeline").iterdir()]
        assert len([one for one in files if one.startswith(name)]) == 1, "completed twice"
        checked = verify_at(self.path, Layers())
        assert checked.ok, checked.problems
        return ended.requested_time

    def both_go_on(self, *values: int) -> None:
        """Each writes and cleans after the other; ``values`` were written before."""
        self.java_writes(21)
        self.java_cleans()
        self.write(22)
        with self.open() as table:
            table.services.clean()
        self.java_writes(23)
        self.expect(*values, 21, 22, 23)
        with self.open() as table:
            assert table.context.active().pending == ()

    def data(self) -> list[str]:
        files = (one.relative_to(self.path) for one in self.path.rglob("*") if one.is_file())
        return sorted(one.name for one in files if is_data(str(one)))


@pytest.fixture
def shared(java_oracle: Callable[..., JavaOracle], tmp_path: Path) -> Callable[[str, int], Shared]:
    return lambda release, writes: Shared(tmp_path / "t", java_oracle(release), writes)


@pytest.fixture(params=["COPY_ON_WRITE", pytest.param("MERGE_ON_READ", marks=RARE)])
def either(
    request: pytest.FixtureRequest, java_oracle: Callable[..., JavaOracle], tmp_path: Path
) -> Callable[[str, int], Shared]:
    """Of either type; writes after the first are logs on a merge-on-read table."""
    return lambda release, writes: Shared(
        tmp_path / "t", java_oracle(release), writes, request.param
    )


# ---- cleans


@pytest.mark.parametrize("release", OFTEN)
def test_we_finish_a_clean_in_which_java_died(
    shared: Callable[[str, int], Shared], release: str
) -> None:
    table = shared(release, 5)
    before = Before(table.path)
    table.java_cleans()
    whole = table.data()
    before.died(".clean", back=before.gone[::2])
    with table.open({**OURS, "hoodie.clean.commits.retained": "100"}) as opened:
        assert opened.services.clean() is None, "nothing is to be cleaned but that"
    assert table.data() == whole
    table.expect_ended(Action.CLEAN)
    table.both_go_on(1, 2, 3, 4, 5)


@pytest.mark.parametrize("release", RARELY)
@pytest.mark.parametrize("shown", [False, True], ids=["slot", "shown, half done"])
def test_java_continues_after_a_clean_in_which_we_died(
    shared: Callable[[str, int], Shared], release: str, shown: bool
) -> None:
    table = shared(release, 5)
    before = Before(table.path)
    with table.open() as opened:
        assert opened.services.clean() is not None
    if shown:
        before.died(".clean", back=before.gone[::2])
    else:
        before.died(".clean", ".clean.inflight", ".clean.requested", back=before.gone)
    table.expect(1, 2, 3, 4, 5)
    table.java_writes(6)
    table.java_cleans()  # it finishes ours where it sees it
    table.write(7)
    if shown:
        table.expect_ended(Action.CLEAN)
    table.both_go_on(1, 2, 3, 4, 5, 6, 7)


# ---- rollbacks


def dead_write(table: Shared, by_java: bool) -> str:
    """A write that died before its publication; its requested time."""
    before = Before(table.path)
    if by_java:
        table.java_writes(9)
    else:
        table.write(9)
    return before.writer_died()


@pytest.mark.parametrize("release", OFTEN)
@pytest.mark.parametrize(
    "half",
    [
        pytest.param(False, id="planned", marks=RARE),
        pytest.param(True, id="target off the timeline"),
    ],
)
def test_we_finish_a_rollback_in_which_java_died(
    either: Callable[[str, int], Shared], release: str, half: bool
) -> None:
    table = either(release, 2)
    target = dead_write(table, by_java=True)
    before = Before(table.path)
    table.java.service(table.path, "rollback", target, conf=table.conf)
    left = before.gone
    assert left, "java had something to delete"
    if half:
        before.died(".rollback", back=left[::2])
    else:
        before.died(".rollback", ".rollback.inflight", back=[*left, *before.timeline(target)])
    with table.open() as opened:
        opened.services.clean()
    assert not [one for one in table.data() if target in one]
    assert table.expect_ended(Action.ROLLBACK) > target
    table.both_go_on(1, 2)


@pytest.mark.parametrize("release", RARELY)
@pytest.mark.parametrize("steps", ["slot", "shown", "done but for its end"])
def test_java_continues_after_a_rollback_in_which_we_died(
    either: Callable[[str, int], Shared], release: str, steps: str
) -> None:
    """Its lazy cleaner rolls the dead write back itself, or carries our plan out."""
    table = either(release, 2)
    target = dead_write(table, by_java=False)
    before = Before(table.path)
    with table.open() as opened:
        [done] = opened.services.rollback_dead_writers()
    assert done.slot is not None
    if steps == "slot":
        unseen = (".rollback", ".rollback.inflight", ".rollback.requested")
        before.died(*unseen, back=[*before.gone, *before.timeline(target)])
    elif steps == "shown":
        before.died(".rollback", back=[*before.gone[::2], *before.timeline(target)])
    else:
        before.died(".rollback")
    table.expect(1, 2)
    table.java_writes(3)
    table.java_cleans()
    assert not [one for one in table.data() if target in one]
    table.write(4)
    if steps != "slot":
        table.expect_ended(Action.ROLLBACK)
    table.both_go_on(1, 2, 3, 4)


@RARE
def test_a_rollback_of_an_attempt_at_a_compaction_is_deleted_once_we_completed_it(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path
) -> None:
    """Java was killed in a compaction, and killed again while it took that try back."""
    java = java_oracle("1.2.0")
    table = Shared(tmp_path / "t", java, 3, "MERGE_ON_READ")
    conf = {**table.conf, "hoodie.compact.inline.max.delta.commits": "1"}
    planned = java.service(table.path, "compact", schedule_only=True, conf=conf)["result"]
    for shown in (".compaction.inflight", ".rollback.inflight"):
        doomed = JavaOracle("1.2.0")
        try:
            doomed.dies_at(table.path, "compact", shown=shown, pending=planned, conf=conf)
        finally:
            doomed.close()
    age(table.path)
    with table.open() as opened:
        assert opened.services.execute(planned) is not None
        opened.services.clean()
    table.expect(1, 2, 3)
    table.both_go_on(1, 2, 3)


# ---- restores


def restorable(table: Shared) -> str:
    """A savepoint of the present state, and two writes after it; the savepoint's time."""
    with table.open() as opened:
        kept = opened.savepoint().requested_time
    table.write(11)
    table.write(12)
    return kept


@RARE
@pytest.mark.parametrize("release", ["1.2.0", "1.0.2"])
@pytest.mark.parametrize("shown", [".restore.inflight", ".rollback.inflight"])
def test_we_finish_a_restore_in_which_java_was_killed(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, release: str, shown: str
) -> None:
    doomed = JavaOracle(release)
    try:
        table = Shared(tmp_path / "t", doomed, 2)
        kept = restorable(table)
        doomed.dies_at(table.path, "restore", kept, shown=shown, conf=table.conf)
    finally:
        doomed.close()
    with table.open() as opened:
        with pytest.raises(TableConfigConflictError, match="--finish"):
            opened.upsert(pa.Table.from_pylist(rows(13), SCHEMA))
        done = opened.finish_restore()
    assert done is not None
    assert done.restored_to == kept
    table.java = java_oracle(release)
    table.expect(1, 2)
    table.expect_ended(Action.RESTORE)
    table.both_go_on(1, 2)


@pytest.mark.parametrize("release", OFTEN)
@pytest.mark.parametrize(
    "done",
    [
        pytest.param(False, id="shown"),
        pytest.param(True, id="done but for its end", marks=RARE),
    ],
)
@pytest.mark.parametrize("heir", ["ours", pytest.param("java", marks=RARE)])
def test_a_restore_in_which_we_died_stops_java_until_it_is_finished(
    either: Callable[[str, int], Shared], release: str, done: bool, heir: str
) -> None:
    table = either(release, 2)
    kept = restorable(table)
    before = Before(table.path)
    with table.open() as opened:
        assert opened.restore(kept) is not None
    if done:
        before.died(".restore")
        table.expect(1, 2)
    else:
        later = [one for one in before.timeline() if one.rpartition("/")[2][:17] > kept]
        before.died(".restore", ".restore.inflight", back=[*before.gone, *later])
    with pytest.raises(JavaRefusedError, match="pending restore"):
        table.java_writes(13)
    if heir == "java":
        table.java.service(table.path, "restore", kept, conf=table.conf)
        table.expect(1, 2)
        table.java_writes(14)
    table.write(15)  # finishes the service that its own engine left
    table.expect_ended(Action.RESTORE)
    table.expect(1, 2, *([14] if heir == "java" else []), 15)


@RARE
def test_a_restore_killed_before_its_slot_is_finished_from_its_visible_plan(
    shared: Callable[[str, int], Shared],
) -> None:
    table = shared("1.2.0", 2)
    kept = restorable(table)
    before = Before(table.path)
    with table.open() as opened:
        opened.restore(kept)
    later = [one for one in before.timeline() if one.rpartition("/")[2][:17] > kept]
    before.died(".restore", ".restore.inflight", back=[*before.gone, *later])
    slots = sorted((table.path / ".hoodie" / ".hoodoo" / "slots").iterdir())
    slots[-1].unlink()
    with pytest.raises(JavaRefusedError, match="pending restore"):
        table.java_writes(13)
    copy = table.path.with_name("copy")
    shutil.copytree(table.path, copy)
    with table.open() as opened:
        assert opened.finish_restore() is not None
    table.expect_ended(Action.RESTORE)
    table.both_go_on(1, 2)
    table.path = copy
    table.java.service(copy, "restore", kept, conf=table.conf)
    table.expect_ended(Action.RESTORE)
    table.both_go_on(1, 2)
