"""Java properties text, read and written in all forms that Java reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeline.errors import CorruptTableError, InvalidInputError
from timeline.properties.properties_file import format_properties, parse_properties

DATA = Path(__file__).parents[1] / "data"
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))


@pytest.mark.parametrize(
    ("written", "key", "value"),
    [
        (b"a=b", "a", "b"),
        (b"a:b", "a", "b"),
        (b"a b", "a", "b"),
        (b"  a \t=\f b ", "a", "b "),
        (b"a", "a", ""),
        (b"a==b", "a", "=b"),
        (b"a\\ b\\=c=d", "a b=c", "d"),
        (b"a=b\\\n   c", "a", "bc"),
        (b"a=b\\\\\nc=d", "a", "b\\"),
        (b"a=\\u00e9\\uD83D\\uDE00\xe9", "a", "é\U0001f600é"),
        (b"a=\\t\\n\\r\\f\\:\\q", "a", "\t\n\r\f:q"),
        (b"# c\\\n! d\n\n\r\na=b\r", "a", "b"),
        (b"a=1\na=b", "a", "b"),
        (b"a=b\x85c", "a", "b\x85c"),
        (b"a=b\\", "a", "b"),
    ],
)
def test_every_form_java_reads_is_read(written: bytes, key: str, value: str) -> None:
    assert parse_properties(written)[key] == value


def test_text_is_escaped_as_java_escapes_it() -> None:
    mapping = {"k e:y": ' {"type":"x"} #!=\\', "u": "é\U0001f600\t\n"}
    assert format_properties(mapping, ["Properties saved on 2026-11-21T10:07:01Z"]) == (
        b"#Properties saved on 2026-11-21T10:07:01Z\n"
        b'k\\ e\\:y=\\ {"type"\\:"x"} \\#\\!\\=\\\\\n'
        b"u=\\u00E9\\uD83D\\uDE00\\t\\n\n"
    )


@given(mapping=st.dictionaries(TEXT, TEXT, max_size=5))
def test_properties_are_parsed_as_they_were_formatted(mapping: dict[str, str]) -> None:
    assert parse_properties(format_properties(mapping, ["c"])) == mapping


@pytest.mark.parametrize("name", ["v8_cow_part.properties", "v9_cow_part.properties"])
def test_javas_lines_are_written_again_byte_for_byte(name: str) -> None:
    data = (DATA / name).read_bytes()
    written = format_properties(parse_properties(data), ["x", "y"])
    assert written.splitlines()[2:] == data.splitlines()[2:]


@pytest.mark.parametrize("written", [b"a=\\u12", b"a=\\uD83D", b"a=b\x00", b"\x00" * 9])
def test_damaged_text_names_its_path(written: bytes) -> None:
    with pytest.raises(CorruptTableError) as refused:
        parse_properties(written, path=".hoodie/hoodie.properties")
    assert refused.value.fields["path"] == ".hoodie/hoodie.properties"


def test_text_above_the_limit_is_refused() -> None:
    with pytest.raises(CorruptTableError):
        parse_properties(b"a=b", bytes_max=2)


@pytest.mark.parametrize("value", ["\ud800", "\x00"])
def test_text_that_cannot_be_read_back_is_not_written(value: str) -> None:
    with pytest.raises(InvalidInputError):
        format_properties({"a": value})


def test_a_comment_cannot_smuggle_in_a_property() -> None:
    with pytest.raises(InvalidInputError):
        format_properties({}, ["a\nhoodie.table.name=evil"])


@given(noise=st.binary(max_size=80))
def test_noise_is_read_or_a_corrupt_table(noise: bytes) -> None:
    try:
        parse_properties(noise)
    except CorruptTableError as error:
        assert error.kind == "corrupt_table"  # noqa: PT017
