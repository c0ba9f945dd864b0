"""Keys that Java inserts into logs: its indexes that know logs do so, and ours must find them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import hoodoo
from tests.interop.java import JavaOracle
from tests.interop.mor import BUCKET, COMMON, EVENT_TIME, JAVA, arrow, row

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

DDL = "id string, p string, ts bigint, val string, _hoodie_is_deleted boolean"


def options_for(index: dict[str, str]) -> dict[str, str]:
    return {
        **COMMON,
        **EVENT_TIME,
        **JAVA,
        **index,
        "hoodie.table.timeline.timezone": "UTC",
    }


def test_keys_of_buckets_are_found_by_a_writer_without_them(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path
) -> None:
    java, path = java_oracle("1.2.0"), tmp_path / "t"
    conf = options_for({**BUCKET, "hoodie.bucket.index.num.buckets": "1"})
    for key in "abcd":  # the first opens the bucket, the others go into its logs as updates
        java.write(path, [row(key, 10, "java")], schema=DDL, conf=conf)
    java.service(path, "compact", conf=conf)
    java.write(path, [row("e", 10, "java"), row("aa", 10, "java")], schema=DDL, conf=conf)
    keys = ["a", "aa", "b", "c", "d", "e"]
    with hoodoo.open_table(path, properties={**COMMON, "hoodie.index.type": "SIMPLE"}) as table:
        table.upsert(arrow([row(key, 20, "ours") for key in keys]))
        found = table.to_arrow().to_pylist()
    assert sorted((one["id"], one["val"]) for one in found) == [(key, "ours") for key in keys]
    assert sorted(one["id"] for one in java.read(path)) == keys
