"""
Send errors from a task to the driver.

Spark turns the exception of a task into the text of a Java exception, so a user would see a
traceback. An error of hoodoo travels as JSON: in a result row, or in the text of the exception
if Spark must retry the task.
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
    """An exception that makes Spark retry the task; its text contains the real error."""

    def __init__(self, error: HoodooError) -> None:
        packed = base64.b64encode(error_to_json(error).encode()).decode()
        super().__init__(f"{error.message} hoodoo-error:{packed}:")


def error_to_json(error: HoodooError) -> str:
    """Return an error as one line of JSON."""
    document = {
        "class": type(error).__name__,
        "message": error.message,
        "kind": error.kind,
        "fields": error.fields,
    }
    return json.dumps(document, default=str)


def error_from_json(text: str) -> HoodooError:
    """Return the error, of the same class, that ``error_to_json`` wrote."""
    document: dict[str, Any] = json.loads(text)
    name = document["class"]
    found = getattr(known_errors, name) if name in known_errors.__all__ else InternalError
    if not (isinstance(found, type) and issubclass(found, HoodooError)):
        found = InternalError
    return found(document["message"], kind=document["kind"], **document["fields"])


def error_from_rows(texts: Sequence[str]) -> HoodooError:
    """Return one error for those of many batches; row counts of its kind are added."""
    errors = [error_from_json(text) for text in sorted(texts)]
    first = errors[0]
    alike = [each for each in errors if each.kind == first.kind]
    if not isinstance(first.fields.get("rows"), int):
        return first
    rows = sum(each.fields["rows"] for each in alike)
    message = _ROWS.sub(f"rows={rows}", first.message)
    return type(first)(message, kind=first.kind, **{**first.fields, "rows": rows})


def error_from_spark(error: Exception) -> HoodooError | None:
    """Return the error that a task raised; None if Spark failed for another reason."""
    match = _MARKED.search(str(error))
    if match is None:
        return None
    return error_from_json(base64.b64decode(match.group(1)).decode())


def collect_dataframe(df: Any) -> list[Any]:
    """
    Return the rows of a DataFrame.

    Raises:
        HoodooError: A task raised it.
    """
    try:
        rows: list[Any] = df.collect()
    except Exception as error:
        carried = error_from_spark(error)
        if carried is None:
            raise
        raise carried from error
    return rows
