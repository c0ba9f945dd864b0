"""
Java properties text, the format of `hoodie.properties` and `.hoodie_partition_metadata`.

Reading follows `java.util.Properties` in all its forms (format 1.1). Writing gives Java's output,
except that the order is the mapping's and the comment lines are the caller's, because this module
reads no clock.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from timeline.errors import CorruptTableError, InvalidInputError
from timeline.layout import TABLE_DESCRIPTOR

__all__ = [
    "PROPERTIES_BYTES_MAX",
    "TableDescriptor",
    "decode_table_descriptor",
    "encode_table_descriptor",
    "format_properties",
    "parse_properties",
]

PROPERTIES_BYTES_MAX: Final = 16 * 1024 * 1024
"""Largest properties text that is read, bytes."""

_BLANKS: Final = " \t\f"
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_TRAILING_BACKSLASHES: Final = re.compile(r"\\+\Z")
_PAIR: Final = re.compile(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_NAMED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_WRITTEN: Final = {
    "\\": "\\\\",
    "\t": "\\t",
    "\n": "\\n",
    "\r": "\\r",
    "\f": "\\f",
    "=": "\\=",
    ":": "\\:",
    "#": "\\#",
    "!": "\\!",
}
_TO_ESCAPE: Final = re.compile(r"[\\=:#!]|[^ -~]")


def parse_properties(
    data: bytes, *, path: str = "", bytes_max: int = PROPERTIES_BYTES_MAX
) -> dict[str, str]:
    """
    Read properties text; the last of several equal keys wins, as in Java.

    Args:
        data: The whole file, ISO-8859-1.
        path: The file's name in errors.
        bytes_max: Largest text that is read, bytes.

    Raises:
        CorruptTableError: the text is larger than `bytes_max`, contains a zero byte, or an escape
            that Java refuses, too.
    """
    if len(data) > bytes_max:
        raise _damaged(path, f"{len(data)} bytes are more than the allowed {bytes_max}")
    if b"\x00" in data:
        raise _damaged(path, "it holds zero bytes")
    properties = {}
    for line in _logical_lines(data.decode("latin-1")):
        pair = _PAIR.fullmatch(line)
        if pair is None:
            raise _damaged(path, "a line is no key and value")
        key, value = (_unescaped(part, path) for part in pair.groups())
        properties[key] = value
    return properties


def format_properties(mapping: Mapping[str, str], comments: Iterable[str] = ()) -> bytes:
    """
    Write properties text in the order of the mapping, comment lines first.

    Args:
        mapping: Keys and values; any Unicode text.
        comments: Lines without the leading `#`; Java's own file has two, with the time.

    Raises:
        InvalidInputError: a text contains an unpaired surrogate or a zero character, or a comment
            has more than one line.
    """
    lines = []
    for comment in comments:
        if _LINE_END.search(comment):
            raise InvalidInputError(
                f"a comment must be one line, split it: {comment!r}", kind="properties_text"
            )
        lines.append("#" + _TO_ESCAPE.sub(_latin_comment, comment))
    for key, value in mapping.items():
        escaped_key = _escaped(key).replace(" ", "\\ ")
        escaped_value = _escaped(value)
        if escaped_value.startswith(" "):
            escaped_value = "\\" + escaped_value
        lines.append(f"{escaped_key}={escaped_value}")
    return "".join(line + "\n" for line in lines).encode("ascii")


def _logical_lines(text: str) -> Iterator[str]:
    """Yield lines without comments and blanks, joined after a backslash at the line's end."""
    joined = ""
    continued = False
    for natural in _LINE_END.split(text):
        line = natural.lstrip(_BLANKS)
        if not continued and (not line or line[0] in "#!"):
            continue
        slashes = _TRAILING_BACKSLASHES.search(line)
        continued = slashes is not None and len(slashes.group()) % 2 == 1
        joined += line[:-1] if continued else line
        if not continued:
            yield joined
            joined = ""
    if joined:
        yield joined


def _unescaped(text: str, path: str) -> str:
    if "\\" not in text:
        return text

    def plain(match: re.Match[str]) -> str:
        escape = match.group(1)
        if escape == "u":
            raise _damaged(path, "a unicode escape lacks its four digits")
        if len(escape) > 1:
            return chr(int(escape[1:], 16))
        return _NAMED.get(escape, escape)

    units = _ESCAPE.sub(plain, text)
    try:
        # Escapes are UTF-16 units: two of them make one character beyond the first plane.
        return units.encode("utf-16-be", "surrogatepass").decode("utf-16-be")
    except UnicodeDecodeError as failure:
        raise _damaged(path, "a unicode escape is half a character") from failure


def _escaped(text: str) -> str:
    return _TO_ESCAPE.sub(_written, text)


def _written(match: re.Match[str]) -> str:
    character = match.group()
    named = _WRITTEN.get(character)
    if named is not None:
        return named
    try:
        units = character.encode("utf-16-be")
    except UnicodeEncodeError as failure:
        raise InvalidInputError(
            f"text holds half a character, correct it: {character!r}", kind="properties_text"
        ) from failure
    if character == "\x00":
        raise InvalidInputError(
            "text holds a zero character, remove it: '\\x00'", kind="properties_text"
        )
    return "".join(f"\\u{units[i]:02X}{units[i + 1]:02X}" for i in range(0, len(units), 2))


def _latin_comment(match: re.Match[str]) -> str:
    character = match.group()
    return character if character in "\\=:#!" else _written(match)


def _damaged(path: str, why: str) -> CorruptTableError:
    return CorruptTableError(
        f"properties are damaged ({why}): restore them from the backup beside them: {path}",
        path=path,
    )


# ---- The table descriptor: a table's identity and its slot store (F27, SLOT-6)
#
# One small file per table, created once and never changed. An address is not an identity, since a
# table can be dropped and another created at the same address. Writers that take slots in different
# places would not exclude each other, so the place is a property of the table.


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDescriptor:
    """The facts of a table that never change."""

    table_id: str
    slots: str  # as ``StorageCapabilities.slots``


def encode_table_descriptor(facts: TableDescriptor) -> bytes:
    """Return the file's bytes."""
    return json.dumps({"id": facts.table_id, "slots": facts.slots}).encode()


def decode_table_descriptor(data: bytes) -> TableDescriptor:
    """
    Read the file.

    Raises:
        CorruptTableError: It is damaged.
    """
    try:
        document = json.loads(data)
        return TableDescriptor(table_id=str(document["id"]), slots=str(document["slots"]))
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise CorruptTableError(
            f"the table's identity cannot be read, bring the file back from a backup: {TABLE_DESCRIPTOR}",
            path=TABLE_DESCRIPTOR,
        ) from error
