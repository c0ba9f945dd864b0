"""Schemas of the source and of the transformed rows: an Avro file, or a Confluent registry."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit, urlunsplit
from urllib.request import Request, urlopen

import pyarrow as pa

from filegroups.schema.avro_schema import avro_to_arrow
from hoodoo.streamer.settings import StreamerSettings
from hoodoo.streamer.transform import read_text
from timeline.errors import CorruptTableError, HoodooError, InvalidInputError, UnavailableError
from timeline.properties.options import PropertySet

_PACKAGE = "org.apache.hudi.utilities.schema."
_FILES, _REGISTRY = "FilebasedSchemaProvider", "SchemaRegistryProvider"
_BYTES_MAX = 8 << 20
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Schemas:
    """
    The schemas that a user gives.

    Args:
        source: The columns to read; None for those of the source.
        source_json: The same as Avro JSON.
        target: The columns of the transformed rows; None for those that come.
    """

    source: pa.Schema | None = None
    source_json: str | None = None
    target: pa.Schema | None = None


def schemas_of(settings: StreamerSettings, properties: PropertySet) -> Schemas:
    """
    Read the schemas that the settings name.

    Raises:
        SettingError: A file cannot be read, or there is no such provider.
        InvalidInputError: A schema is no Avro record (``streamer_schema``).
        UnavailableError: The registry does not answer.
    """
    name = (settings.schema_class or "").removeprefix(_PACKAGE)
    if name not in ("", _FILES, _REGISTRY):
        raise StreamerSettings.refusal(
            properties,
            "schema_class",
            f"hoodoo has no such provider; use {_FILES} or {_REGISTRY}",
        )
    by_registry = name == _REGISTRY or (not name and settings.registry_url is not None)
    fields = (
        ("registry_url", "registry_target_url")
        if by_registry
        else ("source_schema_file", "target_schema_file")
    )
    given = [getattr(settings, field) for field in fields]
    if name and given[0] is None:
        raise StreamerSettings.missing(properties, fields[0], "the schema of the source", name)
    texts: list[str | None] = []
    for field, where in zip(fields, given, strict=True):
        key = StreamerSettings.options[field].key
        if where is None:
            texts.append(None)
        elif by_registry:
            texts.append(schema_text(_asked(where, registry_login(properties)), where))
        else:
            texts.append(read_text(where, key))
    source, target = (None if text is None else arrow_schema(text) for text in texts)
    return Schemas(source=source, source_json=texts[0], target=target)


def arrow_schema(text: str) -> pa.Schema:
    """Return the columns of an Avro record. Raises: ``InvalidInputError``."""
    try:
        return avro_to_arrow(text)
    except HoodooError as error:
        # The advice of a damaged table is not that of a file of the user's.
        damaged = isinstance(error, CorruptTableError)
        raise InvalidInputError(
            f"the schema of the streamer is not an Avro record that hoodoo can write; correct it: "
            f"{repr(text[:200]) if damaged else error.message}",
            kind="streamer_schema",
        ) from None


# ---- A Confluent schema registry, by HTTP


def registry_login(properties: PropertySet) -> str:
    """Return ``user:password`` of the registry, in the keys of Java's client; empty for none."""
    return properties.get("schema.registry.basic.auth.user.info", "") or properties.get(
        "basic.auth.user.info", ""
    )


def schema_of_id(registry: str, number: int, login: str) -> str:
    """Return the Avro JSON of a schema by its number. Errors: as ``schemas_of``."""
    where = f"{registry.rstrip('/')}/schemas/ids/{number}"
    return schema_text(_asked(where, login), where)


def schema_text(document: Any, where: str) -> str:
    """Return the schema in an answer of the registry."""
    text = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(text, str) or document.get("schemaType", "AVRO") != "AVRO":
        raise InvalidInputError(
            f"the registry has no Avro schema there; correct the address: {_shown(where)}",
            kind="streamer_schema",
        )
    return text


def _asked(address: str, login: str) -> Any:
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInputError(
            f"the address of a registry begins with http:// or https://: {_shown(address)}",
            kind="streamer_schema",
        )
    if parts.username is not None:
        login = f"{parts.username}:{parts.password or ''}"
        host = parts.hostname if parts.port is None else f"{parts.hostname}:{parts.port}"
        parts = parts._replace(netloc=host)
    request = Request(urlunsplit(parts))  # noqa: S310 - the scheme is checked
    if login:
        token = base64.b64encode(login.encode()).decode("ascii")
        request.add_header("Authorization", f"Basic {token}")
    try:
        with urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - as above
            return json.loads(answer.read(_BYTES_MAX))
    except HTTPError as error:
        raise InvalidInputError(
            f"the registry answers {error.code} {error.reason}; correct the address or the login: "
            f"{_shown(address)}",
            kind="streamer_schema",
        ) from None
    except (OSError, HTTPException, ValueError) as error:
        raise UnavailableError(
            f"the schema registry does not answer, start it or correct its address: "
            f"{_shown(address)}: {error}",
            kind="unreadable_source",
        ) from None


def _shown(address: str) -> str:
    """Return an address without its login (SEC5)."""
    return address.rpartition("@")[2] if "@" in address else address
