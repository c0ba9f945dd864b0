"""
The contract of a catalog: the requests that a sync needs; the metastore and Glue implement it.

Errors of all catalogs are here, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from hoodoo.sync.partition_values import Values
from hoodoo.sync.table_entry import TableEntry
from timeline.errors import UnsafeSetupError


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundEntry:
    """An entry as the catalog has it; ``raw`` is the catalog's own form, with all it knows."""

    entry: TableEntry
    raw: Any


class EntryChangedError(Exception):
    """Another process changed the entry since it was read; read it again."""


def missing_database_error(catalog: Catalog, database: str) -> UnsafeSetupError:
    """Return the error for a database that does not exist, if no sync may create it."""
    return UnsafeSetupError(
        "the database does not exist: create it, or set "
        f"hoodie.datasource.hive_sync.auto_create_database=true: {database} in {catalog.name}",
        kind="sync_database",
    )


def other_object_error(catalog: Catalog, database: str, name: str) -> UnsafeSetupError:
    """Return the error for an entry that is no table of files."""
    return UnsafeSetupError(
        "the catalog has a view or another object of this name: choose another "
        f"hoodie.datasource.hive_sync.table: {database}.{name} in {catalog.name}",
        kind="sync_other_object",
    )


class Catalog(Protocol):
    """
    A catalog. Each request may raise ``UnavailableError`` or ``UnsafeSetupError``.

    Several processes may sync one table at once. So each request is repeatable: to create what
    exists, and to drop what does not, is no error.
    """

    @property
    def name(self) -> str:
        """The catalog's name and address, for messages."""

    def ensure_database(self, database: str, *, create: bool) -> None:
        """
        Create the database if it does not exist.

        Raises:
            UnsafeSetupError: It does not exist, and ``create`` is false.
        """

    def find(self, database: str, name: str) -> FoundEntry | None:
        """Return the entry of this name."""

    def create(self, entry: TableEntry) -> None:
        """Create the entry, unless there is one of this name."""

    def replace(self, found: FoundEntry, entry: TableEntry, *, cascade: bool) -> None:
        """
        Replace the entry.

        Args:
            found: The entry as read.
            entry: The new entry.
            cascade: Whether the columns of its partitions change, too.

        Raises:
            EntryChangedError: Another sync moved the entry's last commit since it was read.
        """

    def partitions(self, entry: TableEntry, wanted: Iterable[Values] | None) -> dict[Values, str]:
        """Return the location of each registered partition by its values; None asks for all."""

    def add_partitions(self, found: FoundEntry, added: Mapping[Values, str]) -> None:
        """Register partitions at their locations."""

    def move_partitions(self, found: FoundEntry, moved: Mapping[Values, str]) -> None:
        """Change the location of registered partitions."""

    def drop_partitions(self, entry: TableEntry, dropped: Iterable[Values]) -> None:
        """Remove partitions from the catalog; their files stay."""

    def close(self) -> None:
        """Close the connection."""
