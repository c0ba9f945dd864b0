"""Java's path hash, compared with values that Hudi 1.2.0 printed."""

from __future__ import annotations

import logging

import pytest

from lockproviders.hookspecs import LockContext
from lockproviders.settings import hashed_address, path_hash
from timeline.errors import SettingError


@pytest.mark.parametrize(
    ("address", "printed_by_java"),
    [
        ("s3a://bkt/t1", "C18CF90096A11877"),
        ("s3://bkt/t1", "C18CF90096A11877"),
        ("s3a://bkt/t1/", "1432FEE662416D7C"),
        ("/data/t1", "903AA68BF7616829"),
        ("file:///data/t1", "2ABB428D42FE235B"),
    ],
)
def test_hash_is_javas(address: str, printed_by_java: str) -> None:
    assert path_hash(address) == printed_by_java


def test_only_a_leading_lower_case_s3a_is_rewritten() -> None:
    spellings = ("S3A://bkt/t1", " s3a://bkt/t1", "s3://bkt/t1")
    assert len({path_hash(spelling) for spelling in spellings}) == 3


def context(machine, address: str, **properties: str) -> LockContext:
    return LockContext(
        properties=properties,
        table_identity="t",
        table_address=address,
        table_folder=None,
        clock=machine.clock,
        ids=machine.ids,
    )


def test_address_is_the_one_the_caller_spelled(machine) -> None:
    assert hashed_address(context(machine, "s3a://bkt/t1")) == "s3a://bkt/t1"


def test_override_wins_over_the_address(machine) -> None:
    settings_context = context(machine, "/mnt/t1", **{"hoodoo.lock.table.address": "s3a://bkt/t1"})
    assert hashed_address(settings_context) == "s3a://bkt/t1"


@pytest.mark.parametrize("address", ["s3a://bkt/t1/", " s3a://bkt/t1", "s3a://bkt/t1 "])
def test_an_unusual_spelling_is_kept_with_a_warning(
    machine, caplog: pytest.LogCaptureFixture, address: str
) -> None:
    with caplog.at_level(logging.WARNING, logger="hoodoo.lock"):
        assert hashed_address(context(machine, address)) == address
    assert "hoodoo.lock.table.address" in caplog.text


def test_no_address_is_refused(machine) -> None:
    with pytest.raises(SettingError, match=r"hoodie\.base\.path"):
        hashed_address(context(machine, " "))
