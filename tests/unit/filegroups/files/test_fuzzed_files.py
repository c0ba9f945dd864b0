"""
Damaged files of every kind give a value or a clear error, and nothing else.

Goal: properties, instants, archives, footers and other files of a table cannot hang or crash a
reader, whatever their source. Method: thousands of seeded mutants of Java's files of golden
tables, one decoder at a time.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import PurePath
from typing import Any

import pytest

from filegroups.files.parquet import read_base_file, read_batches, read_footer, read_keys
from filegroups.index.buckets import decode_hashing_metadata
from tests.fuzzing import mutants
from tests.interop import golden_tables
from tests.unit.timeline.memory import MemoryStorage
from timeline.codecs import instant_avro
from timeline.codecs.archive_manifest import parse_manifest, parse_version
from timeline.codecs.archived_instants import parse_archive_file, parse_archived_instants
from timeline.codecs.legacy_commit import decode_legacy_commit
from timeline.errors import HoodooError
from timeline.model.table_config import TableConfig
from timeline.properties.properties_file import parse_properties

SEED = 7
CASES = 300
CASES_NIGHTLY = 10_000
GOOD_BYTES_MAX = 60_000
GOOD_FILES_MAX = 20

Read = Callable[[bytes], Any]


def read_properties(data: bytes) -> TableConfig:
    return TableConfig.from_properties(parse_properties(data, path="p"), path="p")


def read_parquet(data: bytes) -> None:
    storage = MemoryStorage()
    storage.create("f.parquet", data)
    for read in (read_footer, read_base_file, read_keys, lambda *where: list(read_batches(*where))):
        found = read(storage, "f.parquet")
        if hasattr(found, "validate"):
            found.validate(full=True)


KINDS: dict[str, tuple[str, str, Read]] = {
    "properties": ("v[89]_*", ".hoodie/hoodie.properties", read_properties),
    "partition metadata": ("v9_*", "**/.hoodie_partition_metadata", parse_properties),
    "commits": ("v9_c*", ".hoodie/timeline/*.commit", instant_avro.decode_commit),
    "deltacommits": ("v8_*", ".hoodie/timeline/*.deltacommit", instant_avro.decode_commit),
    "workload profiles": ("v8_*", ".hoodie/timeline/*.inflight", instant_avro.decode_commit),
    "replacecommits": ("v9_*", ".hoodie/timeline/*.replacecommit", instant_avro.decode_commit),
    "clean plans": ("v9_*", ".hoodie/timeline/*.clean.requested", instant_avro.decode_clean_plan),
    "cleans": ("v9_*", ".hoodie/timeline/*_*.clean", instant_avro.decode_clean),
    "rollback plans": (
        "v8_*",
        ".hoodie/timeline/*.rollback.requested",
        instant_avro.decode_rollback_plan,
    ),
    "rollbacks": ("v8_*", ".hoodie/timeline/*_*.rollback", instant_avro.decode_rollback),
    "clustering plans": (
        "v*",
        ".hoodie/timeline/*.clustering.requested",
        instant_avro.decode_requested_replace,
    ),
    "compaction plans": (
        "v*",
        ".hoodie/timeline/*compaction.requested",
        instant_avro.decode_compaction_plan,
    ),
    "savepoints": ("v*", ".hoodie/timeline/*_*.savepoint", instant_avro.decode_savepoint),
    "version 6 commits": ("v6_*", ".hoodie/*commit", decode_legacy_commit),
    "version 6 archives": ("v6_*", ".hoodie/archived/.commits_.archive.*", parse_archive_file),
    "histories": ("v9_*", ".hoodie/timeline/history/*.parquet", parse_archived_instants),
    "manifests": ("v9_*", ".hoodie/timeline/history/manifest_*", parse_manifest),
    "manifest numbers": ("v9_*", ".hoodie/timeline/history/_version_", parse_version),
    "hashing metadata": (
        "v9_consistent_bucket",
        "**/*.hashing_meta",
        lambda data: decode_hashing_metadata(data, path="p"),
    ),
    "base files": ("v8_*", "**/*.parquet", read_parquet),
}


@cache
def good(tables: str, files: str) -> tuple[bytes, ...]:
    """Return some small files of golden tables."""
    found: list[bytes] = []
    for archive in sorted(golden_tables.FOLDER.glob(f"{tables}.zip")):
        with zipfile.ZipFile(archive) as zipped:
            found += [
                zipped.read(entry)
                for entry in zipped.infolist()
                if PurePath(entry.filename).match(files) and 0 < entry.file_size <= GOOD_BYTES_MAX
            ]
        if len(found) >= GOOD_FILES_MAX:
            break
    assert found, (tables, files)
    return tuple(found[:GOOD_FILES_MAX])


def run(kind: str, seed: int, count: int) -> tuple[int, int]:
    """Count the files that are read and those that are refused."""
    tables, files, read = KINDS[kind]
    fine = refused = 0
    for number, data in enumerate(mutants(seed, good(tables, files), count)):
        try:
            read(data)
            fine += 1
        except HoodooError:
            refused += 1
        except BaseException as error:
            error.add_note(f"mutant {number} of seed {seed} of {kind}")
            raise
    return fine, refused


@pytest.mark.parametrize("kind", KINDS)
def test_the_good_files_are_read(kind: str) -> None:
    tables, files, read = KINDS[kind]
    for data in good(tables, files):
        read(data)


@pytest.mark.parametrize("kind", KINDS)
def test_mutants_are_read_or_refused(kind: str) -> None:
    fine, refused = run(kind, SEED, CASES)
    assert fine + refused == CASES
    assert refused


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_mutants_are_read_or_refused(nightly: bool, kind: str) -> None:
    cases = CASES_NIGHTLY if nightly else CASES
    assert sum(run(kind, 2000, cases)) == cases


def test_mutants_inside_base_files_are_read_or_refused() -> None:
    """The damage is in pages and in the footer; the lengths are valid."""
    tables, files, read = KINDS["base files"]
    (data, *_) = good(tables, files)
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    pages = mutants(SEED, [data[4:footer]], CASES)
    footers = mutants(SEED, [data[footer:-8]], CASES)
    damaged = [
        *(data[:4] + page[: footer - 4].ljust(footer - 4, b"\0") + data[footer:] for page in pages),
        *(data[:footer] + foot + len(foot).to_bytes(4, "little") + b"PAR1" for foot in footers),
    ]
    refused = 0
    for one in damaged:
        try:
            read(one)
        except HoodooError:
            refused += 1
    assert CASES < refused < 2 * CASES
