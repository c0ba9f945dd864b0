"""Which files a partition of the metadata table needs (MDT-21)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from filegroups.metadata_table.lost_files import refuse_lost_files
from tests.unit.timeline.memory import MemoryStorage
from timeline.errors import MissingFileError
from timeline.model.commit_metadata import CommitMetadata, FileGroupId, WriteStat
from timeline.model.file_slice import BaseFile, LogFile
from timeline.snapshot import ActiveTimeline, CommitReader, Snapshot

BUILD_1, BUILD_4 = "00000000000000001", "00000000000000004"
PARTITION = "record_index"


def at(seconds: int) -> str:
    return f"202611291600{seconds:02}000"


def base(group: int, time: str) -> str:
    return f"record-index-000{group}-0_0-0-0_{time}.hfile"


def log(group: int, time: str) -> str:
    return f".record-index-000{group}-0_{time}.log.1_0-0-0"


def completed(time: str, end: int, action: str = "deltacommit") -> str:
    return f"{time}_{at(end)}.{action}"


def metadata(names: Sequence[str]) -> CommitMetadata:
    stats = tuple(WriteStat(path=f"{PARTITION}/{name}") for name in names)
    return CommitMetadata(partition_to_write_stats={PARTITION: stats})


def lost(written: Mapping[str, Sequence[str]], files: Sequence[str]) -> str | None:
    """Return the file that is lost, from the files of each instant and those that exist."""
    own = Snapshot(active=ActiveTimeline.of(written), head=0, commits=CommitReader(MemoryStorage()))
    logs = [one for name in files if (one := LogFile.found(PARTITION, name, 1)) is not None]
    bases = [
        BaseFile(
            file_group=FileGroupId(PARTITION, name[:19]),
            name=name,
            requested_time=name[-23:-6],
            size_bytes=1,
        )
        for name in files
        if name.endswith(".hfile")
    ]
    by_time = {name[:17]: names for name, names in written.items()}
    try:
        refuse_lost_files(
            own,
            PARTITION,
            bases,
            logs,
            lambda instants: [metadata(by_time[one.requested_time]) for one in instants],
        )
    except MissingFileError as error:
        return str(error.fields["path"]).rpartition("/")[2]
    return None


#: A build of two file groups; the second one has no records, so no base file.
BUILT = [base(0, BUILD_4), log(0, BUILD_4), log(1, BUILD_4)]
LATER = [log(0, at(40)), log(1, at(40))]


@pytest.mark.parametrize(
    ("written", "files", "missing"),
    [
        pytest.param(
            {
                completed(BUILD_1, 10): [base(0, BUILD_1), base(1, BUILD_1), log(0, BUILD_1)],
                completed(at(12), 13): [log(0, at(12)), log(1, at(12))],
                completed(at(14), 15, "commit"): [base(0, at(14)), base(1, at(14))],
                completed(BUILD_4, 20): BUILT,
            },
            BUILT,
            None,
            id="a build replaced them",
        ),
        pytest.param(
            {
                completed(at(14), 15, "commit"): [base(0, at(14)), base(1, at(14))],
                completed(at(16), 17): [log(0, at(16)), log(1, at(16))],
                completed(at(40), 41): LATER,
            },
            [*BUILT, *LATER],
            None,
            id="a build replaced them, and is archived",
        ),
        pytest.param(
            {
                completed(at(40), 41): LATER,
                completed(at(42), 43): [log(0, at(42))],
            },
            [*BUILT, *LATER],
            log(0, at(42)),
            id="a log file above an archived build",
        ),
        pytest.param(
            {
                completed(at(40), 41): LATER,
                completed(at(42), 43, "commit"): [base(0, at(42)), base(1, at(42))],
            },
            [*BUILT, *LATER, base(0, at(42))],
            base(1, at(42)),
            id="a base file above an archived build",
        ),
        pytest.param(
            {completed(BUILD_4, 20): BUILT, completed(at(40), 41): LATER},
            [*BUILT[1:], *LATER],
            base(0, BUILD_4),
            id="a base file of the build",
        ),
        pytest.param(
            {
                completed(BUILD_4, 20): BUILT,
                completed(at(40), 41): LATER,
                completed(at(42), 43, "commit"): [base(0, at(42)), base(1, at(42))],
            },
            [base(0, at(42)), base(1, at(42))],
            None,
            id="a compaction merged them",
        ),
        pytest.param(
            {
                completed(at(42), 43, "commit"): [base(0, at(42)), base(1, at(42))],
                completed(at(44), 45): [log(0, at(44))],
            },
            [base(0, at(42)), base(1, at(42))],
            log(0, at(44)),
            id="a log file above a compaction",
        ),
    ],
)
def test_a_partition_needs_its_files_since_the_newest_build_and_above_base_files(
    written: Mapping[str, Sequence[str]], files: Sequence[str], missing: str | None
) -> None:
    assert lost(written, files) == missing
