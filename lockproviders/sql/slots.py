"""
Commit slots in a table of a SQL database: a primary key decides who creates a row (SLOT-6).

The table is for slots, separate from the lock's: a row is created once, never changed, and must
outlive a power cut. Contents are text (base64), which all these databases keep unchanged.
"""

from __future__ import annotations

import base64

from lockproviders.sql.client import SqlTable, row_name
from lockproviders.sql.database import Database, NoTable, NotExecuted, OutcomeLost, Row, RowExists
from timeline.ports.ports import (
    AmbiguousWriteError,
    ObjectExistsError,
    ObjectMissingError,
    SlotNames,
    slot_store_lost,
)

_COLUMNS = (
    "folder {name_type} NOT NULL, name {name_type} NOT NULL, content {text_type} NOT NULL, "
    "PRIMARY KEY (folder, name)"
)
_INSERT = "INSERT INTO {table} (folder, name, content) VALUES (?, ?, ?)"
_READ = "SELECT content FROM {table} WHERE folder = ? AND name = ?"
_NAMES = "SELECT name FROM {table} WHERE folder = ?"
_DELETE = "DELETE FROM {table} WHERE folder = ? AND name = ?"


class SqlSlotStore:
    """
    A slot store in one table.

    Args:
        database: The database of the table; closed with this object. It must be durable.
        table: Name of the table.
        may_create: Whether a missing table is created.
    """

    def __init__(self, database: Database, *, table: str, may_create: bool) -> None:
        self._is_kept = False  # its engine is known to keep rows over a crash
        self._answered = False  # the table existed; a new one would let every number be taken again
        name_type = database.column_types[0]
        self._table = SqlTable(
            database,
            table,
            columns=_COLUMNS.format(name_type=name_type, text_type=database.long_text_type),
            may_create=may_create,
        )

    @property
    def identity(self) -> str:
        """Database and table; equal for all processes that use it."""
        return f"sql:{self._table.address}"

    def create(self, path: str, data: bytes) -> None:
        """Create a slot; see the port. Outside: 1 insert, plus 1 query the first time."""
        values = (*_key(path), base64.b64encode(data).decode())
        if not self._is_kept:
            self._table.refuse_unsafe_engine()
            self._is_kept = True  # or it is missing, and will be created in a safe engine
        was_answered = self._answered
        try:
            try:
                self._table.change_once(_INSERT, values)
            except NoTable as missing:
                self._refuse_loss(missing, was_answered=was_answered)
                self._table.make(missing)
                self._insert_again(values)
            self._answered = True
        except RowExists as error:
            self._answered = True
            raise ObjectExistsError(path) from error
        except OutcomeLost as error:
            raise AmbiguousWriteError(path) from error
        except NotExecuted as error:
            raise self._table.silent(str(error)) from error

    def _insert_again(self, values: tuple[str, ...]) -> None:
        try:
            self._table.change_once(_INSERT, values)
        except NoTable as error:  # dropped again, or another object has its name
            raise self._table.silent(str(error)) from error

    def read(self, path: str) -> bytes:
        """Return the bytes of a slot; see the port. Outside: 1 query."""
        found = self._rows(_READ, _key(path))
        if not found:
            raise ObjectMissingError(path)
        return base64.b64decode(found[0][0])

    def names(self, folder: str) -> SlotNames:
        """Return the names in a folder; see the port. Outside: 1 query."""
        return sorted(row[0] for row in self._rows(_NAMES, (row_name(folder),)))

    def delete(self, path: str) -> None:
        """Delete a slot; see the port. Outside: 1 delete."""
        was_answered = self._answered
        try:
            self._table.change(_DELETE, _key(path))
        except NoTable as missing:
            self._refuse_loss(missing, was_answered=was_answered)

    def close(self) -> None:
        """Close the connection."""
        self._table.close()

    def _rows(self, statement: str, values: tuple[str, ...]) -> list[Row]:
        was_answered = self._answered
        try:
            found = self._table.rows(statement, values)
        except NoTable as missing:
            self._refuse_loss(missing, was_answered=was_answered)
            return []
        self._answered = True
        return found

    def _refuse_loss(self, missing: NoTable, *, was_answered: bool) -> None:
        """
        Do nothing if the table may not have been created yet, else raise.

        Args:
            missing: The database's answer.
            was_answered: Whether the table existed when the statement was sent. Another thread may
                create the table while the statement is on its way.

        Raises:
            UnsafeSetupError: The table existed before.
        """
        if was_answered:
            raise slot_store_lost(self.identity) from missing


def _key(path: str) -> tuple[str, str]:
    folder, _, name = path.rpartition("/")
    return row_name(folder), row_name(name)
