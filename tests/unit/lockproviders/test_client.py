"""The text of any holder is printed safely."""

from __future__ import annotations

import pytest

from lockproviders.client import describe_owner, note_owner


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (None, "unknown"),
        ("", "unknown"),
        ('{"owner":"h/1/w","purpose":"publish 1"}', "h/1/w for 'publish 1'"),
        ('{"owner":"h/1/w"}', "h/1/w"),
        ("application_id=x", "'application_id=x'"),
        ("\x1b[31mred\n", "'\\x1b[31mred\\n'"),
        ('{"owner":"\\u001b[31m"}', "\\x1b[31m"),
        ('{"owner":7}', "'{\"owner\":7}'"),
        ("[" * 9_000, "'" + "[" * 200 + "'"),
    ],
)
def test_holder_is_described(text: str | None, shown: str) -> None:
    assert describe_owner(text) == shown


def test_long_purpose_is_shortened(machine) -> None:
    assert len(note_owner(machine.ids, machine.clock, "p" * 5_000).purpose) == 200
