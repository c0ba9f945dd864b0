"""
Errors on their way from a task to the driver.

Spark turns an exception of a task into the text of a Java one, which would show a user a
traceback instead of what is wrong. Ours travel as JSON, in a result row where the task can
still answer and inside the exception's text where Spark shall try the task again.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from typing import Any

import timeline.errors as known_errors
from timeline.errors import HoodooError, InternalError

_ROWS = re.compile(r"\brows=\d+$")
_MARKED = re.compile(r"hoodoo-error:([A-Za-z0-9+/=]+):")


class TaskFailedError(Exception):
    """What a task raises so that Spark tries it again; its text holds the real error."""

    def __init__(self, error: HoodooError) -> None:
        packed = base64.b64encode(error_to_json(error).encode()).decode()
        super().__init__(f"{error.message} hoodoo-error:{packed}:")


def error_to_json(error: HoodooError) -> str:
    """An error as one line of text."""
    document = {
        "class": type(error).__name__,
        "message": error.message,
        "kind": error.kind,
        "fields": error.fields,
    }
    return json.dumps(document, default=str)


def error_from_json(text: str) -> HoodooError:
    """Read back what ``error_to_json`` wrote, as the same class."""
    document: dict[str, Any] = json.loads(text)
    name = document["class"]
    found = getattr(known_errors, name) if name in known_errors.__all__ else InternalError
    if not (isinstance(found, type) and issubclass(found, HoodooError)):
        found = InternalError
    return found(document["message"], kind=document["kind"], **document["fields"])


def error_from_rows(texts: Sequence[str]) -> HoodooError:
    """One error out of those of many batches; where they count rows, the counts are added."""
    errors = [error_from_json(text) for text in sorted(texts)]
    first = errors[0]
    alike = [each for each in errors if each.kind == first.kind]
    if not isinstance(first.fields.get("rows"), int):
        return first
    rows = sum(each.fields["rows"] for each in alike)
    message = _ROWS.sub(f"rows={rows}", first.message)
    return type(first)(message, kind=first.kind, **{**first.fields, "rows": rows})


def error_from_spark(error: Exception) -> HoodooError | None:
    """The error a task raised, None when Spark failed for a reason of its own."""
    match = _MARKED.search(str(error))
    if match is None:
        return None
    return error_from_json(base64.b64decode(match.group(1)).decode())


def collect_dataframe(df: Any) -> list[Any]:
    """
    A DataFrame's rows.

    Raises:
        HoodooError: What a task raised.
    """
    try:
        rows: list[Any] = df.collect()
    except Exception as error:
        carried = error_from_spark(error)
        if carried is None:
            raise
        raise carried from error
    return rows
