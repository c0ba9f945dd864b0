"""
Open the storage behind a user's address.

Only this module knows which kinds of address exist. It never resolves an address that comes from a
table's own files (SEC11).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from timeline.errors import InvalidInputError, SettingError, StorageCapabilityError
from timeline.ports.ports import Storage
from timeline.storage.local import DurabilityName, LocalStorage
from timeline.storage.object_address import OBJECT_SCHEMES, parse_object_address
from timeline.storage.object_client import ObjectSettings

DURABILITY_KEY = "hoodoo.storage.durability"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)\Z", re.DOTALL)
_KNOWN_ELSEWHERE = frozenset(("adl", "wasb", "wasbs", "hdfs", "oss", "cos", "obs"))
_WORKS_TODAY = (
    "a plain path (/data/flights), a file address (file:/data/flights) or an object store "
    "(s3://bucket/flights, gs://, abfss://) works"
)


def storage_for(
    address: str | os.PathLike[str], *, options: Mapping[str, str] | None = None
) -> Storage:
    """
    Open the storage of one table; read and create nothing yet.

    Args:
        address: A path, absolute or not, or ``file:/path``, ``file:///path``,
            ``file://localhost/path``, or that of an object store. Nothing in it is unescaped, as in
            Hadoop.
        options: The caller's ``hoodoo.storage.*`` options and their spellings in Hadoop and Hudi;
            others are ignored. Never options of a table (SEC11).

    Raises:
        StorageCapabilityError: An unsupported or unknown scheme.
        MissingExtraError: An object store, and its client is not installed.
        SettingError: An option has a value it cannot have.
        InvalidInputError: The address is empty, contains control characters or names a host.
    """
    text = os.fspath(address)
    if not text.strip() or re.search(r"[\x00-\x1f\x7f]", text):
        raise InvalidInputError(
            f"the address of a table is empty or contains control characters; {_WORKS_TODAY}: "
            f"{text!r}",
            address=text,
        )
    match = _SCHEME.match(text)
    if match is not None and match[1].lower() in OBJECT_SCHEMES and match[2].startswith("//"):
        from timeline.storage.object_store import ObjectStorage  # not for a local table

        place = parse_object_address(text)
        return ObjectStorage(place, ObjectSettings.from_properties(options or {}, place))
    return LocalStorage(_local_path(text), durability=_durability(options or {}))


def _local_path(text: str) -> str:
    match = _SCHEME.match(text)
    # A colon in a path is not a scheme if the path has a slash before it.
    if match is None or os.sep in match.group(1):
        return text
    scheme, rest = match.group(1).lower(), match.group(2)
    if scheme == "file":
        return _path_of_file_uri(rest, text)
    if scheme in _KNOWN_ELSEWHERE or scheme in OBJECT_SCHEMES:
        raise StorageCapabilityError(
            f"this kind of address is not supported, or lacks its two slashes; {_WORKS_TODAY}: "
            f"{text!r}",
            kind="storage_scheme",
            missing=scheme,
            address=text,
        )
    raise StorageCapabilityError(
        f"this kind of address is unknown; {_WORKS_TODAY}. Write a path with a colon as ./path: "
        f"{text!r}",
        kind="storage_scheme",
        missing=scheme,
        address=text,
    )


def _path_of_file_uri(rest: str, text: str) -> str:
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        rest = slash + path
        if host not in ("", "localhost"):
            raise InvalidInputError(
                "a file address must not name another host: mount its folder and use file:/path: "
                f"{text!r}",
                address=text,
            )
    if not rest.startswith("/"):
        raise InvalidInputError(
            f"a file address needs an absolute path, as in file:/data/flights: {text!r}",
            address=text,
        )
    return "/" + rest.lstrip("/")


def _durability(options: Mapping[str, str]) -> DurabilityName:
    value = options.get(DURABILITY_KEY, "strict").strip().lower()
    if value == "strict":
        return "strict"
    if value == "relaxed":
        return "relaxed"
    raise SettingError(
        f"the durability must be strict or relaxed: set one of them: {DURABILITY_KEY} = {value!r}",
        key=DURABILITY_KEY,
        value=value,
        suggestion="strict",
    )
