"""Transformers: functions of Python and queries between a source and the table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pkgutil import resolve_name
from typing import Any

from hoodoo.configuration import local_path
from hoodoo.streamer.engine import PLACEHOLDER, Engine, Rows
from hoodoo.streamer.settings import StreamerSettings
from timeline.errors import HoodooError, InvalidInputError, SettingError
from timeline.properties.options import PropertySet

Transform = Callable[[Rows], Rows]

_PACKAGE = "org.apache.hudi.utilities.transform."
_QUERY = "SqlQueryBasedTransformer"
_QUERY_FILE = "SqlFileBasedTransformer"
_FLATTENING = "FlatteningTransformer"
_DMS, _DMS_COLUMN = "AWSDmsTransformer", "Op"
_CLASSES = (_QUERY, _QUERY_FILE, _FLATTENING, _DMS)


def transforms_of(
    settings: StreamerSettings, properties: PropertySet, engine: Engine
) -> Sequence[Transform]:
    """
    Return the transformers in their order, which an engine runs; a query alone needs no class.

    Raises:
        SettingError: There is no such class, function or query.
    """
    names = settings.transformers
    if not names:
        names = (_QUERY,) * (settings.transformer_sql is not None)
        names += (_QUERY_FILE,) * (settings.transformer_sql_file is not None)
    return [_transform(name, settings, properties, engine) for name in names]


def _transform(
    name: str, settings: StreamerSettings, properties: PropertySet, engine: Engine
) -> Transform:
    prefix, _, after = name.rpartition(":")
    short = after.removeprefix(_PACKAGE)
    if short not in _CLASSES:
        return partial(_by_function, engine, _python(name, properties), name)
    if short == _FLATTENING:
        return engine.flatten
    if short == _DMS:
        return partial(_with_dms_column, engine)
    field = "transformer_sql" if short == _QUERY else "transformer_sql_file"
    key = StreamerSettings.options[field].key
    text = properties.get(f"{key}.{prefix}") if prefix else getattr(settings, field)
    if not text:
        raise StreamerSettings.missing(properties, field, "a query with <SRC>", name)
    if short == _QUERY_FILE:
        text = read_text(text, key)
    return partial(engine.query_batch, text, key)


def _with_dms_column(engine: Engine, rows: Rows) -> Rows:
    """Return rows with the operation of AWS DMS; files of a full load have none, so it is empty."""
    if _DMS_COLUMN in engine.columns(rows):
        return rows
    return engine.query_batch(f"SELECT *, '' AS {_DMS_COLUMN} FROM {PLACEHOLDER}", _DMS, rows)  # noqa: S608


def read_text(path: str, key: str) -> str:
    """Return the text of a local file that an option names. Raises: ``SettingError``."""
    try:
        return local_path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise SettingError(
            f"the file cannot be read, correct its path: {key}={path}: {error}",
            kind="setting_value",
            key=key,
            value=path,
            layer="",
            suggestion="a readable file",
        ) from None


def _python(name: str, properties: PropertySet) -> Callable[[Any], Any]:
    """Return the function ``module:function`` of the caller's own options (SEC4)."""
    try:
        found = resolve_name(name) if ":" in name else None
    except (ImportError, AttributeError, ValueError) as error:
        raise StreamerSettings.refusal(
            properties, "transformers", f"the function cannot be imported, {error}", value=name
        ) from None
    if not callable(found):
        raise StreamerSettings.refusal(
            properties,
            "transformers",
            f"this is no transformer; use module:function or one of {', '.join(_CLASSES)}",
            value=name,
        )
    function: Callable[[Any], Any] = found
    return function


def _by_function(engine: Engine, function: Callable[[Any], Any], name: str, rows: Rows) -> Rows:
    try:
        return engine.call(function, rows)
    except HoodooError:
        raise
    except Exception as error:
        raise InvalidInputError(
            f"the transformer failed, correct it: {name}: {type(error).__name__}: {error}"[:500],
            kind="streamer_transformer",
            transformer=name,
        ) from error
