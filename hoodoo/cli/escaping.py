"""
Texts from tables, made harmless for a terminal (SEC19).

A record may hold an escape sequence that repaints the screen or a mark that reverses the
reading direction; whatever is printed passes through here.
"""

from __future__ import annotations

import json
import re
from typing import Any

__all__ = ["NEEDS_ESCAPE", "compact_json", "harmless", "json_text"]

# Control characters (C0, DEL, C1), line separators, and marks that change the reading direction.
_HOSTILE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_HOSTILE_IN_JSON = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

#: For Arrow's regular expressions: a text that is no JSON string as it stands.
NEEDS_ESCAPE = (
    "[^ -!#-\\[\\]-~\u00a0-\u061b\u061d-\u200d\u2010-\u2027\u202f-\u2065\u206a-\U0010ffff]"
)


def harmless(text: object) -> str:
    """The text on one line, hostile characters spelled out."""
    return _HOSTILE.sub(lambda found: f"\\x{ord(found[0]):02x}", str(text))


def json_text(value: Any, *, indent: int | None = None) -> str:
    """JSON that can be printed anywhere; still the same value for a parser."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, default=str)
    return _HOSTILE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def compact_json(value: Any) -> str:
    """The same without blanks, for one line of many."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    return _HOSTILE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
