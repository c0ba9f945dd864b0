"""
The table keeps the bucket options of its first writer with such an index; all others must agree.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import hoodoo
from filegroups.writing.workload import LocalWorkload
from hoodoo.writer import unregister_writer
from tests.unit.timeline.engine import Meddled
from timeline.errors import SettingError, WriterDisagreementError
from timeline.model.commit_metadata import WriteOperation
from timeline.system import SystemIds
from timeline.writer_registry import registered_writers

MANY = {
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.write.lock.provider": "filesystem",
}
BUCKETS = {**MANY, "hoodie.index.type": "BUCKET"}
ROWS = pa.table({"id": ["a"], "p": ["x"], "v": [1]})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    hoodoo.create_table(
        tmp_path, schema=ROWS.schema, record_key="id", partition_by="p", properties=MANY
    ).close()
    return tmp_path


@pytest.mark.spec("REG-1")
def test_a_refused_writer_leaves_no_buckets_in_the_table(path: Path) -> None:
    """
    If kept before the refusal, they would exclude all writers from a table of other file groups.
    """
    with (
        hoodoo.open_table(path, properties=MANY) as first,
        hoodoo.open_table(path, properties=BUCKETS) as other,
    ):

        def meet() -> None:
            with pytest.raises(WriterDisagreementError):
                other.upsert(ROWS)

        ports = first.context.ports
        first._run(WriteOperation.UPSERT, Meddled(LocalWorkload(ports, ROWS), meet))
    with hoodoo.open_table(path, properties=MANY) as later:
        assert later.upsert(ROWS).rows_updated == 1


def test_a_refused_writer_with_other_buckets_blocks_no_writer(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A random file id may begin with eight digits, as the ids of buckets do; the reason stays."""
    drawn = iter(("12345678-0000-4000-8000-000000000000", "12345679-0000-4000-8000-000000000000"))
    with (
        hoodoo.open_table(path, properties=MANY) as first,
        hoodoo.open_table(path, properties=BUCKETS) as other,
    ):
        monkeypatch.setattr(
            SystemIds, "uuid", lambda _: next(drawn, "beefcafe-0000-4000-8000-000000000000")
        )
        for number in range(9):
            first.upsert(ROWS.set_column(1, "p", pa.array([f"x{number}"])))
        monkeypatch.undo()
        unregister_writer(first.context)
        with pytest.raises(SettingError) as refused:
            other.upsert(ROWS)
        assert refused.value.kind == "no_bucket"
        assert registered_writers(other.context) == []


def test_the_first_writer_of_an_empty_table_sets_its_buckets(path: Path) -> None:
    with hoodoo.open_table(path, properties=BUCKETS) as table:
        table.upsert(ROWS)
    with hoodoo.open_table(path, properties=MANY) as later:
        assert later.settings.index_type.value == "BUCKET"
        assert later.upsert(ROWS).rows_updated == 1
