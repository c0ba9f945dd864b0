"""
Texts from tables, made harmless for a terminal.

A record may contain an escape sequence that repaints the screen, or a mark that reverses the
reading direction. All printed texts pass these functions.
"""

from __future__ import annotations

import json
import re
from typing import Any

# Control characters (C0, DEL, C1), line separators, and marks that change the reading direction.
_HOSTILE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_HOSTILE_IN_JSON = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def escape_text(text: object) -> str:
    """Return the text on one line, with hostile characters as escapes."""
    return _HOSTILE.sub(lambda found: f"\\x{ord(found[0]):02x}", str(text))


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return JSON without hostile characters; a parser reads the same value."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, default=str)
    return _HOSTILE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def compact_json(value: Any) -> str:
    """Return the same JSON without blanks, for JSON lines."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    return _HOSTILE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
