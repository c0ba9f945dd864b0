"""A streamer: batches, checkpoints in commits, and errors before anything is begun."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import hoodoo
from hoodoo.cli.app import main
from hoodoo.streamer.run import Streamer, StreamerReport
from hoodoo.table import Table
from tableservices.worker import StopFlag
from tests.unit.hoodoo.streamer.streams import options, put, rows_of, stream
from timeline.errors import InvalidInputError, LockTimeoutError, SettingError, UnsafeSetupError

JAVA_KEY = "streamer.checkpoint.key.v2"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path


def texts_of(folder: Path) -> list[Mapping[str, str]]:
    """Return the texts of the commits, the newest first."""
    with hoodoo.open_table(folder / "t") as table:
        return [one.extra_metadata for one in table.snapshot.commits_newest_first()]


def test_a_run_writes_what_is_new_and_the_commit_has_the_checkpoint(folder: Path) -> None:
    put(folder, "a.json", [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}], at_s=100)
    assert stream(options(folder)) == StreamerReport(batches=1, rows=2, checkpoint="100000")
    put(folder, "deep/b.json", [{"id": 2, "v": "B"}, {"id": 3, "v": "c"}], at_s=200)
    assert stream(options(folder)).rows == 2
    assert stream(options(folder)) == StreamerReport(batches=0, rows=0, checkpoint=None)
    assert rows_of(folder / "t") == [(1, "a"), (2, "B"), (3, "c")]
    assert [one[JAVA_KEY] for one in texts_of(folder)] == ["200000", "100000"]


def test_a_checkpoint_is_found_behind_commits_of_other_writers(folder: Path) -> None:
    put(folder, "a.json", [{"id": 1, "v": "a"}], at_s=100)
    stream(options(folder))
    with hoodoo.open_table(folder / "t") as table:
        for number in range(10, 15):
            table.upsert([{"id": number, "v": "x"}])
    put(folder, "b.json", [{"id": 2, "v": "b"}], at_s=200)
    assert stream(options(folder)).rows == 1


def test_a_checkpoint_is_found_in_the_archived_timeline(folder: Path) -> None:
    put(folder, "a.json", [{"id": 1, "v": "a"}], at_s=100)
    stream(options(folder))
    small = {
        "hoodie.keep.min.commits": "2",
        "hoodie.keep.max.commits": "3",
        "hoodie.clean.commits.retained": "1",
    }
    with hoodoo.open_table(folder / "t", properties=small) as table:
        for number in range(10, 18):
            table.upsert([{"id": number, "v": "x"}])
        table.services.clean()
        table.services.archive()
        assert not any(JAVA_KEY in one for one in texts_of(folder))
    assert stream(options(folder)).rows == 0


def test_a_batch_ends_at_the_limit_and_with_all_files_of_one_time(folder: Path) -> None:
    for number in range(6):
        put(folder, f"{number}.json", [{"id": number, "v": "a"}], at_s=100 + number // 2)
    report = stream(options(folder, **{"source.limit": "1"}))
    assert report == StreamerReport(batches=3, rows=6, checkpoint="102000")


def test_files_with_other_columns_are_a_batch_of_their_own(folder: Path) -> None:
    put(folder, "a.json", [{"id": 1, "v": "a"}], at_s=100)
    put(folder, "b.json", [{"id": 2, "v": "b", "w": 5}], at_s=200)
    assert stream(options(folder)).batches == 2
    assert rows_of(folder / "t") == [(1, "a", None), (2, "b", 5)]


def test_hidden_files_do_not_count(folder: Path) -> None:
    put(folder, "a.json", [{"id": 1, "v": "a"}], at_s=100)
    put(folder, "_b.json", [{"id": 2}], at_s=200)
    put(folder, ".tmp/c.json", [{"id": 3}], at_s=200)
    assert stream(options(folder)).checkpoint == "100000"


@pytest.mark.parametrize("name", ["ParquetDFSSource", "CsvDFSSource", "AvroDFSSource"])
def test_each_format_is_read(folder: Path, name: str) -> None:
    rows = pa.table({"id": [1, 2], "v": ["a", None]})
    path = folder / "in" / "rows"
    if name == "AvroDFSSource":
        import fastavro

        fields = [{"name": "id", "type": "long"}, {"name": "v", "type": ["null", "string"]}]
        with path.open("wb") as opened:
            schema = {"type": "record", "name": "r", "fields": fields}
            fastavro.writer(opened, schema, rows.to_pylist(), codec="deflate")
    else:
        (pq.write_table if name == "ParquetDFSSource" else pacsv.write_csv)(rows, path)
    full = f"org.apache.hudi.utilities.sources.{name}"
    stream({**options(folder), "hoodoo.streamer.source.class": full})
    assert rows_of(folder / "t") == [(1, "a"), (2, None)]


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("1\ta,b\n2\t\n", {"sep": r"\t"}),
        ("id\tv\n1\ta,b\n2\t\n", {"sep": "\t", "header": "true"}),
        ("1|a,b\n2|NA\n", {"sep": "|", "header": "false", "nullValue": "NA"}),
        ("1,'a,b'\n2,\n", {"quote": "'"}),
        ('id,v\n1,"a\\,b"\n2,\n', {"escape": "\\", "header": "true"}),
    ],
)
def test_a_csv_file_has_the_form_of_hudis_options(
    folder: Path, text: str, form: Mapping[str, str]
) -> None:
    (folder / "in" / "rows").write_text(text)
    fields = [{"name": "id", "type": "long"}, {"name": "v", "type": ["null", "string"]}]
    (folder / "s.avsc").write_text(json.dumps({"type": "record", "name": "r", "fields": fields}))
    stream(
        options(folder)
        | {f"hoodie.deltastreamer.csv.{key}": value for key, value in form.items()}
        | {
            "hoodoo.streamer.source.class": "CsvDFSSource",
            "hoodie.streamer.schemaprovider.source.schema.file": str(folder / "s.avsc"),
        }
    )
    assert rows_of(folder / "t") == [(1, "a,b"), (2, None)]


def test_a_bad_line_of_a_csv_file_without_a_header_is_named(folder: Path) -> None:
    (folder / "in" / "rows").write_text("1;2\n3;4;5\n")
    form = {"hoodie.streamer.csv.sep": ";", "hoodie.streamer.csv.header": "false"}
    with pytest.raises(InvalidInputError, match="line 2: Expected 2 columns, got 3"):
        stream(options(folder) | form | {"hoodoo.streamer.source.class": "CsvDFSSource"})


def test_named_streamers_have_checkpoints_of_their_own(folder: Path) -> None:
    (folder / "more").mkdir()
    put(folder, "a.json", [{"id": 1, "v": "a"}], at_s=100)
    put(folder, "../more/b.json", [{"id": 2, "v": "b"}], at_s=50)
    second = options(folder, identifier="second") | {
        "hoodie.streamer.source.dfs.root": str(folder / "more")
    }
    assert stream(options(folder)).rows == 1
    assert stream(second).rows == 1
    assert stream(second).rows == stream(options(folder)).rows == 0
    assert [one.get(JAVA_KEY) for one in texts_of(folder)] == [None, "100000"]
    assert texts_of(folder)[0]["hoodoo.streamer.checkpoint.second"] == "50000"


def test_two_instances_of_one_streamer_write_a_batch_once(folder: Path) -> None:
    put(folder, "a.json", [{"id": 1, "v": "a"}], at_s=100)
    stream(options(folder))
    put(folder, "b.json", [{"id": 2, "v": "b"}], at_s=200)
    with Streamer(options(folder)) as one, Streamer(options(folder)) as other:
        before, _ = other._resume()
        assert one.run().rows == 1
        resume = other._resume
        other._resume = lambda: (before, "100000")  # as if it had looked before the first one
        assert other.write_batch() == (None, True)  # an instance that died may have written it
        with pytest.raises(UnsafeSetupError) as caught:
            other.run()
        assert caught.value.kind == "streamer_twice"
        other._resume = resume
        assert other.run().rows == 0
    assert rows_of(folder / "t") == [(1, "a"), (2, "b")]
    assert len(texts_of(folder)) == 2


def test_a_streamer_goes_on_after_a_batch_that_its_dead_instance_committed(folder: Path) -> None:
    put(folder, "a.json", [{"id": 1, "v": "a"}], at_s=100)
    stream(options(folder))
    with Streamer(options(folder)) as late:
        before, resume = late._resume()[0], late._resume
        for number in (2, 3):
            put(folder, f"{number}.json", [{"id": number, "v": "b"}], at_s=100 * number)
            assert stream(options(folder)).rows == 1
        looks = iter([(before, "100000")])
        late._resume = lambda: next(looks, None) or resume()
        put(folder, "4.json", [{"id": 4, "v": "b"}], at_s=400)
        assert late.run().rows == 1
    assert [one for one, _ in rows_of(folder / "t")] == [1, 2, 3, 4]


def test_javas_streamer_may_write_before_but_not_beside(folder: Path) -> None:
    put(folder, "a.json", [{"id": 1}], at_s=1_000)
    stream(options(folder))

    def java_writes(row: int, checkpoint: str) -> None:
        with hoodoo.open_table(folder / "t") as table:
            table.write([{"id": row}], metadata={JAVA_KEY: checkpoint})

    java_writes(2, "2000000")
    put(folder, "c.json", [{"id": 3}], at_s=3_000)
    with Streamer(options(folder)) as ours:
        assert ours.run().checkpoint == "3000000", "it goes on from Java's checkpoint"
        assert ours.run().batches == 0
        java_writes(4, "3000000")
        put(folder, "d.json", [{"id": 5}], at_s=4_000)
        with pytest.raises(UnsafeSetupError, match="a streamer of Java Hudi commits") as caught:
            ours.run()
        assert caught.value.kind == "streamer_twice"
    with Streamer(options(folder, identifier="mine", **{"ignore.checkpoint": "x"})) as named:
        named.check()
        java_writes(6, "3000000")
        assert named.run().rows == 3
    assert stream(options(folder)).rows == 1, "the next start continues"
    assert [row[0] for row in rows_of(folder / "t")] == [1, 2, 3, 4, 5, 6]


def test_a_named_checkpoint_counts_once(folder: Path) -> None:
    for number in range(3):
        put(folder, f"{number}.json", [{"id": number, "v": "a"}], at_s=100 * number + 100)
    assert stream(options(folder, checkpoint="100000")).rows == 2
    assert stream(options(folder, checkpoint="100000")).rows == 0
    assert stream(options(folder, checkpoint="200000")).rows == 1
    assert stream(options(folder, **{"ignore.checkpoint": "once"})).rows == 3
    assert stream(options(folder, **{"ignore.checkpoint": "once"})).rows == 0
    assert texts_of(folder)[0]["deltastreamer.checkpoint.ignore_key"] == "once"


# ---- Bad input: nothing is begun


def _refused(properties: Mapping[str, str], folder: Path, kind: str) -> str:
    before = len(texts_of(folder)) if (folder / "t").exists() else None
    with pytest.raises(InvalidInputError) as caught:
        stream(properties)
    assert caught.value.kind == kind
    assert before == (len(texts_of(folder)) if (folder / "t").exists() else None)
    return caught.value.message


def test_a_checkpoint_of_another_source_is_refused(folder: Path) -> None:
    put(folder, "a.json", [{"id": 1, "v": "a"}], at_s=100)
    stream(options(folder))
    (folder / "other").mkdir()
    other = options(folder) | {"hoodie.streamer.source.dfs.root": str(folder / "other")}
    text = _refused(other, folder, "streamer_checkpoint")
    assert f"{folder}/in, not file:{folder}/other" in text
    kafka = options(folder, checkpoint="flights,0:5,1:7")
    assert "modification time in ms" in _refused(kafka, folder, "streamer_checkpoint")


def test_an_unreadable_source_makes_no_table(folder: Path) -> None:
    missing = options(folder) | {"hoodie.streamer.source.dfs.root": str(folder / "no")}
    assert "correct the path" in _refused(missing, folder, "unreadable_source")
    (folder / "in" / "a.json").write_text('{"id": 1')
    _refused(options(folder), folder, "input_file")
    put(folder, "a.json", [{"no": 1}], at_s=100)
    _refused(options(folder), folder, "missing_key_column")


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("hoodoo.streamer.source.class", "JsonDFSSourc", "did you mean JsonDFSSource"),
        ("hoodoo.streamer.source.class", "ORCDFSSource", "use one of ParquetDFSSource"),
        ("hoodoo.streamer.source.class", "", "set hoodoo.streamer.source.class to one of"),
        ("hoodie.streamer.source.dfs.root", "", "set hoodie.streamer.source.dfs.root to"),
        ("hoodie.streamer.ingestion.targetBasePath", "", "to the table's path"),
        ("hoodie.datasource.write.operation", "delete_partition", "a streamer writes rows"),
        ("hoodoo.streamer.identifier", "a.b", "hoodoo.streamer.identifier=a.b"),
        ("hoodie.streamer.csv.sep", "||", "hoodie.streamer.csv.sep=||"),
    ],
)
def test_a_missing_or_wrong_option_is_refused_by_name(
    folder: Path, key: str, value: str, text: str
) -> None:
    with pytest.raises(SettingError) as caught:
        Streamer({**options(folder), key: value})
    assert text in caught.value.message


def test_an_unknown_key_of_the_streamer_is_told(folder: Path) -> None:
    put(folder, "a.json", [{"id": 1, "v": "a"}], at_s=100)
    more = {"hoodie.streamer.source.gcs.project.id": "p"}
    with pytest.warns(UserWarning, match=r"hoodie\.streamer\.source\.gcs\.project\.id"):
        stream(options(folder) | more)


def test_the_command_takes_the_flags_of_javas_streamer(folder: Path) -> None:
    put(folder, "a.json", [{"id": 1, "v": "a", "n": 5}], at_s=100)
    flags = (
        "--source-class JsonDFSSource --source-ordering-field n --spark-master yarn --payload-class"
    )
    payload = "org.apache.hudi.common.model.PartialUpdateAvroPayload"
    props = folder / "p.properties"
    props.write_text(
        f"hoodie.streamer.source.dfs.root={folder / 'in'}\n"
        "hoodie.datasource.write.recordkey.field=id\n"
    )
    words = ["streamer", "--target-base-path", str(folder / "t"), "--props", str(props)]
    words += [*flags.split(), payload]
    ran = CliRunner().invoke(main, words)
    assert (ran.exit_code, rows_of(folder / "t")) == (0, [(1, "a", 5)])
    assert "no effect here, the Spark session decides that: --spark-master" in ran.stderr
    put(folder, "b.json", [{"id": 1, "v": None, "n": 6}], at_s=200)
    assert CliRunner().invoke(main, [*words, "--disable-compaction"]).exit_code == 0
    put(folder, "c.json", [{"id": 1, "v": "z", "n": 7}, {"id": 2, "v": "b", "n": 1}], at_s=300)
    ran = CliRunner().invoke(main, [*words, "--filter-dupes", "--op", "INSERT"])
    assert (ran.exit_code, rows_of(folder / "t")) == (0, [(1, "a", 6), (2, "b", 1)])
    ran = CliRunner().invoke(main, [*words, "--commit-on-errors"])
    assert (ran.exit_code, "set hoodie.errortable.enable=true" in ran.stderr) == (2, True)


def test_a_continuous_streamer_stops_between_batches_and_compacts_in_the_background(
    folder: Path,
) -> None:
    for number in range(4):
        put(folder, f"{number}.json", [{"id": number, "v": "a"}], at_s=100 + number)
    stop = StopFlag()
    properties = options(folder, continuous="true", **{"source.limit": "1"})
    with Streamer(properties) as streamer:
        report = streamer.run(stop=stop, on_batch=lambda _: stop.set())
        assert streamer._table is not None
        key = "hoodie.datasource.compaction.async.enable"
        assert streamer._table.properties[key] == "true"
    assert (report.batches, report.checkpoint) == (1, "100000")


def test_a_continuous_streamer_repeats_a_batch_if_that_may_help(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(folder, "a.json", [{"id": 1, "v": "a"}], at_s=100)
    stop, left, write = StopFlag(), [LockTimeoutError("busy")] * 2, Table.write

    def failing(self: Table, *args: Any, **more: Any) -> Any:
        if left:
            raise left.pop()
        return write(self, *args, **more)

    monkeypatch.setattr(Table, "write", failing)
    properties = options(folder, continuous="true", **{"idle.ms": "1", "retry.count": "1"})
    with Streamer(properties) as streamer, pytest.raises(LockTimeoutError):
        streamer.run(stop=stop, on_batch=lambda _: stop.set())
    left.append(LockTimeoutError("busy"))
    with Streamer(properties) as streamer:
        assert streamer.run(stop=stop, on_batch=lambda _: stop.set()).rows == 1
