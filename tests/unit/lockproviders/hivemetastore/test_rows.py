"""The rows of the metastore, and the texts that may be written into them."""

from __future__ import annotations

import pytest

from lockproviders.hivemetastore.database import (
    MetastoreLockRow,
    agent_text,
    check_name,
    duration_ms,
    nonce_of,
)
from timeline.errors import SettingError

OWNER = '{"owner":"edge-1/77/w-1","purpose":"publish 20260101000000000","nonce":"n"}'


def row(agent: str) -> MetastoreLockRow:
    return MetastoreLockRow(lock_id=5, acquired=True, user="hoodoo", host="edge-1", agent=agent)


def test_agent_text_holds_mark_nonce_owner_and_purpose() -> None:
    text = agent_text("0123456789abcdef0123", OWNER)
    assert text == "hoodoo 0123456789abcdef0123 77/w-1 publish 20260101000000000"
    assert nonce_of(text) == "0123456789abcdef0123"


def test_holder_text_contains_the_owner() -> None:
    text = row(agent_text("0123456789abcdef0123", OWNER)).holder_text
    assert text == (
        '{"owner": "edge-1/77/w-1", "purpose": "publish 20260101000000000", "lock_id": 5}'
    )


def test_agent_text_fits_the_column() -> None:
    long = '{"owner":"h/1/w","purpose":"' + "p" * 300 + '"}'
    assert len(agent_text("0123456789abcdef0123", long)) == 128


def test_agent_text_has_nothing_that_sql_understands() -> None:
    text = agent_text("0123456789abcdef0123", "x'); drop table HIVE_LOCKS; -- \\ \" ` \n é \0")
    assert set("'\";\\`\n\0é").isdisjoint(text)


@pytest.mark.parametrize(
    "agent", ["", "hoodoo", "Unknown", "hoodoo-like text", "spark 123 hoodoo 4"]
)
def test_foreign_text_has_no_nonce(agent) -> None:
    assert nonce_of(agent) is None
    assert '"owner": "hoodoo@edge-1"' in row(agent).holder_text


def test_shortened_row_is_still_shown() -> None:
    assert '"owner": "hoodoo@edge-1"' in row("hoodoo 0123456789abcdef0123").holder_text


@pytest.mark.parametrize("name", ["default", "Sales_2", "a.b-c", "x" * 128, "with space"])
def test_name_is_sent_as_it_is_spelled(name) -> None:
    assert check_name("k", name, "code") == name


@pytest.mark.parametrize(
    "name",
    ["", None, "a'b", 'a"b', "a\\b", "a`b", "a\nb", "a\0b", "café", "x" * 129, "x'; drop table y"],
)
def test_name_that_could_mean_something_in_sql_is_refused(name) -> None:
    with pytest.raises(SettingError):
        check_name("k", name, "code")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("300s", 300_000),
        ("300", 300_000),
        ("5 min", 300_000),
        ("5m", 300_000),
        ("1h", 3_600_000),
        ("2 days", 172_800_000),
        ("250ms", 250),
        ("250 MSEC", 250),
        ("", None),
        ("soon", None),
        ("5 fortnights", None),
        ("-3s", None),
    ],
)
def test_durations_are_read_as_hive_writes_them(text, expected) -> None:
    assert duration_ms(text) == expected
