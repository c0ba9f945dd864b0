"""The definitions of a table's indexes, in ``.hoodie/.index_defs/index.json``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from filegroups.metadata_table.keys import IndexVersion
from timeline.errors import CorruptTableError
from timeline.model.file_names import INDEX_DEFINITIONS
from timeline.model.metadata_table import PartitionKind
from timeline.ports.ports import ObjectMissingError, Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexDefinition:
    """
    The definition of one partition of the metadata table, which has the same name.

    ``source_fields`` are the indexed columns. Table version 8 writes no version: that is V1, and
    ``has_version`` is false.
    """

    name: str
    index_type: str
    function: str = ""
    source_fields: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    version: IndexVersion = IndexVersion.V1
    has_version: bool = True

    @property
    def is_per_partition(self) -> bool:
        """Whether a record index has its own file groups for each partition of the table."""
        return self.options.get("isPartitioned", "false").lower() == "true"


def read_index_definitions(storage: Storage) -> dict[str, IndexDefinition]:
    """
    Return the definitions of a table by name; none if it has no such file.

    Raises:
        CorruptTableError: As ``parse_index_definitions``.

    Outside: 1 read.
    """
    try:
        return parse_index_definitions(storage.read(INDEX_DEFINITIONS))
    except ObjectMissingError:
        return {}


def parse_index_definitions(data: bytes) -> dict[str, IndexDefinition]:
    """
    Parse the content of the file.

    Raises:
        CorruptTableError: It is not JSON of this form (``bad_index_definitions``).
    """
    try:
        listed = json.loads(data)["indexDefinitions"]
        return {str(name): _definition(str(name), each) for name, each in listed.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise bad_definitions_error(str(error)[:200]) from error


def write_index_definitions(
    storage: Storage,
    added: Iterable[IndexDefinition],
    removed: Iterable[str] = (),
    *,
    is_all: bool = False,
) -> None:
    """
    Change the definitions of some indexes; all others stay as they are. The caller holds the lock.

    ``is_all``: no other index is left, so a damaged file is replaced.

    Outside: 1 read, 1 write. Raises: as ``read_index_definitions``.
    """
    document: dict[str, Any] = {"indexDefinitions": {}}
    try:
        document = json.loads(storage.read(INDEX_DEFINITIONS))
        document["indexDefinitions"].keys()
    except ObjectMissingError:
        pass
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if not is_all:
            raise bad_definitions_error(str(error)[:200]) from error
        document = {"indexDefinitions": {}}
    listed = document["indexDefinitions"]
    for name in removed:
        listed.pop(name, None)
    listed.update((one.name, _entry(one)) for one in added)
    storage.write(INDEX_DEFINITIONS, json.dumps(document, indent=2).encode(), durable=True)


def _entry(one: IndexDefinition) -> dict[str, Any]:
    """Return a definition as Java writes it; a table of version 8 has no versions."""
    entry: dict[str, Any] = {
        "indexName": one.name,
        "indexType": one.index_type,
        "indexFunction": one.function,
        "sourceFields": list(one.source_fields),
        "indexOptions": dict(one.options),
    }
    return entry | ({"version": one.version.value} if one.has_version else {})


def bad_definitions_error(why: str, index: str = "") -> CorruptTableError:
    """Return the error for index definitions that cannot be used, or that lack one index."""
    steps = (
        "'hoodoo metadata drop TABLE', then 'hoodoo metadata create TABLE' and 'hoodoo metadata "
        "create TABLE PARTITION' for each further index"
    )
    if index:
        short = index.removeprefix(PartitionKind.SECONDARY_INDEX.value)
        steps = (
            f"'hoodoo metadata drop TABLE {index}', then 'hoodoo metadata create-index TABLE "
            f"{short} --column COLUMN'"
        )
    return CorruptTableError(
        "the index definitions cannot be read: restore the file from a backup, or run "
        f"{steps}: {INDEX_DEFINITIONS} ({why})",
        kind="bad_index_definitions",
        path=INDEX_DEFINITIONS,
    )


def _definition(name: str, entry: Mapping[str, Any]) -> IndexDefinition:
    options = entry.get("indexOptions") or {}
    return IndexDefinition(
        name=name,
        index_type=str(entry.get("indexType") or name),
        function=str(entry.get("indexFunction") or ""),
        source_fields=tuple(map(str, entry.get("sourceFields") or ())),
        options={str(key): str(value) for key, value in options.items()},
        version=IndexVersion(entry.get("version") or "V1"),
        has_version=bool(entry.get("version")),
    )
