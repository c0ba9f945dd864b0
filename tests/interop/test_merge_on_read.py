"""Java Hudi's services on merge-on-read tables of ours: roll back, clean, archive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import hoodoo
from filegroups.files.rewrite import FileGroupTask
from filegroups.writing.workload import LocalWorkload
from tests.interop.java import JavaOracle
from tests.interop.mor import COMMON, EVENT_TIME, JAVA, SCHEMA, SIMPLE, START, arrow, row
from tests.interop.values import comparable, encoded, same, without_meta
from timeline.model.commit_metadata import WriteOperation, WriteStat

pytestmark = [pytest.mark.jvm, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def appended(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A table with a base file and a log for each partition."""
    path, options = tmp_path / "t", {**COMMON, **EVENT_TIME, **SIMPLE}
    with hoodoo.create_table(path, schema=SCHEMA, properties=options) as table:
        table.upsert(arrow(START))
        table.upsert(arrow([row("a", 20, "newer"), row("e", 20, "newer")]))
    return path, options


def test_java_rolls_back_the_logs_of_a_dead_writer_of_ours(
    java_oracle: Callable[..., JavaOracle], appended: tuple[Path, dict[str, str]]
) -> None:
    """By its markers alone: CREATE for a log file (fmt 1.4)."""
    path, options = appended
    java = java_oracle("1.2.0")
    with hoodoo.open_table(path, properties=options) as table:
        before = encoded(table.to_arrow())
        workload = _Dying(table.context.ports, arrow([row("b", 30, "never")]))
        with pytest.raises(KeyboardInterrupt):
            table._run(WriteOperation.UPSERT, workload)
        (dead,) = table.context.active().pending
    logs = list(path.glob(f"*/.*_{dead.requested_time}.log.1_*"))
    assert len(logs) == 1
    java.service(path, "rollback", dead.requested_time, conf={**options, **JAVA})
    assert not logs[0].exists()
    with hoodoo.open_table(path, properties=options) as table:
        assert encoded(table.to_arrow()) == before
        assert table.context.active().pending == ()
    assert without_meta(java.read(path)) == without_meta(before)


def test_java_cleans_and_archives_our_appends(
    java_oracle: Callable[..., JavaOracle], appended: tuple[Path, dict[str, str]]
) -> None:
    path, options = appended
    java = java_oracle("1.2.0")
    conf = {
        **options,
        **JAVA,
        "hoodie.clean.commits.retained": "1",
        "hoodie.keep.min.commits": "2",
        "hoodie.keep.max.commits": "3",
    }
    for number in range(4):
        with hoodoo.open_table(path, properties=options) as table:
            table.upsert(arrow([row("a", 30 + number, f"round {number}")]))
        java.service(path, "compact", conf=conf)
    java.service(path, "clean", conf=conf)
    java.service(path, "archive", conf=conf)
    assert any(each["action"] == "clean" for each in java.timeline(path))
    assert len(java.timeline(path, archived=True)) > len(java.timeline(path))
    with hoodoo.open_table(path, properties=options) as table:
        mine = encoded(table.current_state().to_arrow(with_hoodie_columns=True))
    assert same(comparable(java.read(path)), mine)
    assert [each["val"] for each in mine if each["id"] == "a"] == ["round 3"]


class _Dying(LocalWorkload):
    """Dies after its files are written, before it commits."""

    def rewrite(self, tasks: Sequence[FileGroupTask]) -> list[tuple[WriteStat, ...]]:
        super().rewrite(tasks)
        raise KeyboardInterrupt
