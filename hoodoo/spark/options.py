"""The options of Spark's reader and writer as layers of properties, and the table's path."""

from __future__ import annotations

import warnings
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from filegroups.settings.known_keys import OWN_PREFIXES, SESSION_PREFIX
from filegroups.settings.read_settings import ReadSettings
from filegroups.settings.settings import WriteSettings
from hoodoo.configuration import Layers
from lockproviders.registry import SlotSettings
from timeline.errors import InvalidInputError, SettingError
from timeline.properties.options import CODE_LAYER, TABLE_LAYER, as_property_set
from timeline.properties.setting_enums import QueryType
from timeline.storage.object_client import is_storage_key

_OF_SESSION = ("spark.hoodie.", "spark.hoodoo.", "spark.hadoop.fs.")
_SEPARATOR, _ARROW = "\x1e", " -> "  # of entries, and as Scala shows an entry
_READ_PATHS = "hoodie.datasource.read.paths"
_MERGE_TYPE, _MERGED = "hoodie.datasource.merge.type", "payload_combine"
_PATH_GLOB = "hoodie.datasource.read.incr.path.glob"
_OF_LOAD = frozenset({_MERGE_TYPE, _PATH_GLOB})
_NOT_PROPERTIES = frozenset({"path", "paths", "checkpointlocation"})
_AS_OF = ReadSettings.options["as_of"].key
_BEGIN = ReadSettings.options["begin_time"].key
_COMMIT_PREFIX = WriteSettings.options["commit_metadata_prefix"]
#: Options of other formats that choose rows, in lower case, and Hudi's for the same.
_CHOOSES_ROWS: Final = {
    "as-of-timestamp": _AS_OF,
    "partitionoverwritemode": "hoodie.datasource.overwrite.mode=DYNAMIC",
    "readchangefeed": "hoodie.datasource.query.type=incremental",
    "replacewhere": "hoodie.datasource.write.operation=insert_overwrite",
    "snapshot-id": _AS_OF,
    "start-snapshot-id": _BEGIN,
    "startingtimestamp": _BEGIN,
    "startingversion": _BEGIN,
    "timestampasof": _AS_OF,
    "versionasof": _AS_OF,
}


def path_of(path: str | None, options: Mapping[str, object], doing: str) -> str:
    """
    Return the table's path, from the argument or from the option ``path``.

    Raises:
        InvalidInputError: The path is missing or empty, or there are several.
    """
    found = path
    if found is None:
        found = next((str(v) for k, v in options.items() if k.lower() == "path"), None)
    if not isinstance(found, str) or not found.strip():
        raise InvalidInputError(
            f"a hoodoo table has one path: pass it to {doing}: {found!r}", kind="path"
        )
    return found


def paths_of(paths: object, options: Mapping[str, object]) -> tuple[list[str], dict[str, object]]:
    """
    Return the paths of a load, and its other options.

    The paths are those of the argument or of the option ``path``, then those of
    ``hoodie.datasource.read.paths``.

    Raises:
        InvalidInputError: There is no path, or one is empty.
    """
    given = {key: value for key, value in options.items() if key.lower() != _READ_PATHS}
    listed = next((str(value) for key, value in options.items() if key not in given), "")
    more = [each.strip() for each in listed.split(",") if each.strip()]
    if isinstance(paths, list | tuple) and paths:
        return [*(path_of(path, {}, "load()") for path in paths), *more], given
    if more and paths is None and not any(key.lower() == "path" for key in given):
        return more, given
    return [path_of(paths, given, "load()"), *more], given  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """
    Options that only ``spark.read.option(..).load()`` takes.

    Args:
        merges: Whether logs are merged with base files. If not, each file's rows are rows of the
            result, as with Hudi's ``skip_merge``.
        path_glob: Pattern of the files of a range; None for all.
    """

    merges: bool = True
    path_glob: str | None = None

    def refuse_beside(self, settings: ReadSettings) -> None:
        """
        Refuse options that a read of this kind does not have.

        Raises:
            InvalidInputError: They would do nothing (``setting_contradiction``).
        """
        is_range = settings.query_type is QueryType.INCREMENTAL
        if self.path_glob is not None and (not is_range or settings.is_cdc):
            raise InvalidInputError(
                f"{_PATH_GLOB} limits incremental reads of rows only: name folders in load(..), or "
                f"set hoodie.datasource.query.type=incremental: {self.path_glob!r}",
                kind="setting_contradiction",
            )
        if not self.merges and is_range:
            raise InvalidInputError(
                f"{_MERGE_TYPE}=skip_merge is for snapshot reads, because a range returns each row "
                "once: remove it, or read the changes with "
                "hoodie.datasource.query.incremental.format=cdc",
                kind="setting_contradiction",
            )


def load_options(options: Mapping[str, object]) -> tuple[LoadOptions, dict[str, object]]:
    """
    Return the options that only a load takes, and the others.

    Raises:
        InvalidInputError: A value is unknown (``setting_value``).
    """
    own = {key.lower(): str(v).strip() for key, v in options.items() if key.lower() in _OF_LOAD}
    merge_type = own.get(_MERGE_TYPE, _MERGED).lower()
    if merge_type not in (_MERGED, "skip_merge"):
        raise InvalidInputError(
            f"{_MERGE_TYPE} is {_MERGED} or skip_merge, not {merge_type!r}", kind="setting_value"
        )
    given = {key: value for key, value in options.items() if key.lower() not in _OF_LOAD}
    path_glob = own.get(_PATH_GLOB) or None
    return LoadOptions(merges=merge_type == _MERGED, path_glob=path_glob), given


def layers_for(spark: Any, options: Mapping[str, object], *, warns: bool = True) -> Layers:
    """
    Return the layers of the session and of the options in code.

    The layer of the session contains its ``spark.hoodie.*`` and ``spark.hoodoo.*`` keys.

    Args:
        spark: The session.
        options: The options of Spark's reader or writer.
        warns: Warn of keys that do nothing here, as ``Layers.warns``.
    """
    return Layers(session=session_properties(spark), code=reader_properties(options), warns=warns)


def layers_without_session(options: Mapping[str, object], *, warns: bool = False) -> Layers:
    """Return the layers in a process without a session, whose settings are among the options."""
    carried = {key: str(value) for key, value in options.items() if _is_of_session(key)}
    given = {key: value for key, value in options.items() if key not in carried}
    return Layers(session=carried, code=reader_properties(given), warns=warns)


def session_settings(spark: Any) -> dict[str, str]:
    """Return the properties of a session that hoodoo uses, with the prefix ``spark.``."""
    return {key: value for key, value in session_properties(spark).items() if _is_of_session(key)}


def storage_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that open the storage, without those of the table (SEC11)."""
    property_set = as_property_set(properties).without_layer(TABLE_LAYER)
    wanted = SlotSettings.options["backend"].key
    return {
        key: value for key, value in property_set.items() if is_storage_key(key) or key == wanted
    }


def session_properties(spark: Any) -> dict[str, str]:
    """Return all runtime properties of a session; those of Hudi and hoodoo get ``spark.``."""
    # One question to the JVM; one for each entry would cost more than the plan of a load.
    entries = spark._jsparkSession.conf().getAll().mkString(_SEPARATOR)  # noqa: SLF001
    found = dict(entry.split(_ARROW, 1) for entry in entries.split(_SEPARATOR) if _ARROW in entry)
    # ``SET hoodie.x=y`` sets a key without ``spark.``, and overrides the key with it.
    later = {key: value for key, value in found.items() if key.lower().startswith(OWN_PREFIXES)}
    spelled = {*later, *(key for key in found if key.lower() in _with_spark(later))}
    kept = {key: value for key, value in found.items() if key not in spelled}
    return kept | {f"spark.{key}": value for key, value in later.items()}


def _with_spark(keys: Iterable[str]) -> frozenset[str]:
    return frozenset(f"spark.{key}".lower() for key in keys)


def reader_properties(options: Mapping[str, object]) -> dict[str, object]:
    """Return the options that are properties, without those of value None, as Spark does."""
    return {
        key: value
        for key, value in options.items()
        if key.lower() not in _NOT_PROPERTIES and value is not None
    }


def check_others(spark: Any, options: Mapping[str, object], known: Container[str] = ()) -> None:
    """
    Refuse or warn of options that are neither Hudi's nor Spark's own, nor entries of the commit.

    Args:
        spark: The session.
        options: The options of a reader or writer.
        known: Further known ones, in lower case.

    Raises:
        SettingError: An option of another format chooses rows (``unsupported_setting``).
    """
    others = []
    for key, value in options.items():
        folded = key.lower()
        instead = _CHOOSES_ROWS.get(folded)
        if instead is not None and str(value).lower() not in ("static", "false"):
            raise SettingError(
                f"this option is of another table format and would choose rows: {key}={value}; use "
                f"{instead}",
                kind="unsupported_setting",
                key=key,
                value=str(value),
                layer=CODE_LAYER,
                suggestion=instead,
            )
        is_known = (
            folded.startswith((*OWN_PREFIXES, SESSION_PREFIX))
            or folded in _NOT_PROPERTIES
            or folded in _CHOOSES_ROWS  # with a value that chooses none
            or folded in known
            or folded == _AS_OF
            or is_storage_key(folded)
        )
        if not is_known and value is not None:
            others.append(key)
    if others:  # the prefix of entries may be an option of any layer
        found = layers_for(spark, options).load().find(_COMMIT_PREFIX)
        prefix = str(_COMMIT_PREFIX.default if found is None else found[1]).casefold()
        others = [key for key in others if not (prefix and key.casefold().startswith(prefix))]
    if others:
        warnings.warn(
            f"unknown option, it is ignored, as those of Hudi begin with hoodie.: {', '.join(sorted(others))}",
            stacklevel=4,
        )


def _is_of_session(key: str) -> bool:
    return key.lower().startswith(_OF_SESSION)
