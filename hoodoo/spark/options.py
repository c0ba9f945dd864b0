"""Options of Spark's reader and writer as layers of properties, and where a table lies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from filegroups.settings.known_keys import OWN_PREFIXES
from hoodoo.configuration import Layers
from lockproviders.registry import SlotSettings
from timeline.errors import InvalidInputError
from timeline.properties.options import TABLE_LAYER, as_property_set
from timeline.storage.object_client import is_storage_key

_OF_SESSION = ("spark.hoodie.", "spark.hoodoo.", "spark.hadoop.fs.")
_NOT_PROPERTIES = frozenset({"path", "paths", "checkpointlocation"})


def path_of(path: str | None, options: Mapping[str, object], doing: str) -> str:
    """
    The table's address, given as an argument or as the option ``path``.

    Raises:
        InvalidInputError: There is none, or not exactly one.
    """
    told = path
    if told is None:
        told = next((str(v) for k, v in options.items() if k.lower() == "path"), None)
    if not isinstance(told, str) or not told.strip():
        raise InvalidInputError(
            f"a hoodoo table is addressed by one path; give it to {doing}: {told!r}", kind="path"
        )
    return told


def layers_for(spark: Any, options: Mapping[str, object], *, tells: bool = True) -> Layers:
    """
    The session's ``spark.hoodie.*`` and ``spark.hoodoo.*``, and the options in code.

    Args:
        spark: The session.
        options: As of Spark's reader or writer.
        tells: As of ``Layers``: whether nobody opened the same table with them before.
    """
    return Layers(session=session_properties(spark), code=reader_properties(options), warns=tells)


def layers_without_session(options: Mapping[str, object], *, tells: bool = False) -> Layers:
    """The same in a process that has no session: its settings came along among the options."""
    carried = {key: str(value) for key, value in options.items() if _is_of_session(key)}
    told = {key: value for key, value in options.items() if key not in carried}
    return Layers(session=carried, code=reader_properties(told), warns=tells)


def session_settings(spark: Any) -> dict[str, str]:
    """What of a session's properties counts here, with its ``spark.`` in front."""
    return {key: value for key, value in session_properties(spark).items() if _is_of_session(key)}


def storage_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """What tasks need to open the table's storage; never an endpoint of the table's (SEC11)."""
    said = as_property_set(properties).without_layer(TABLE_LAYER)
    wanted = SlotSettings.options["backend"].key
    return {key: value for key, value in said.items() if is_storage_key(key) or key == wanted}


def session_properties(spark: Any) -> dict[str, str]:
    """Every runtime property of a session, Hudi's and ours with ``spark.`` in front."""
    found: dict[str, str] = {}
    if getattr(type(spark.conf), "getAll", None) is not None:  # Spark 4
        found = {str(key): str(value) for key, value in dict(spark.conf.getAll).items()}
    else:
        entries = spark._jsparkSession.conf().getAll().iterator()  # noqa: SLF001
        while entries.hasNext():
            entry = entries.next()
            found[entry._1()] = entry._2()  # noqa: SLF001
    # ``SET hoodie.x=y`` has no ``spark.`` in front, and is said later than what has.
    later = {key: value for key, value in found.items() if key.lower().startswith(OWN_PREFIXES)}
    spelled = {*later, *(key for key in found if key.lower() in _with_spark(later))}
    kept = {key: value for key, value in found.items() if key not in spelled}
    return kept | {f"spark.{key}": value for key, value in later.items()}


def _with_spark(keys: Iterable[str]) -> frozenset[str]:
    return frozenset(f"spark.{key}".lower() for key in keys)


def reader_properties(options: Mapping[str, object]) -> dict[str, object]:
    """Options that are properties; None ones are left out as Spark does."""
    return {
        key: value
        for key, value in options.items()
        if key.lower() not in _NOT_PROPERTIES and value is not None
    }


def _is_of_session(key: str) -> bool:
    return key.lower().startswith(_OF_SESSION)
