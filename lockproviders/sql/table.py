"""
One table of a SQL database, made when it is missing and that is wished, asked with patience.

Its own file because the lock and the commit slots lie in tables of the same databases and
meet the same troubles: no table yet, a lost answer to a question that may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from lockproviders.sql.database import (
    AnswerLost,
    Database,
    NoTable,
    Refused,
    Row,
    RowExists,
    Value,
)
from lockproviders.sql.settings import OPTIONS
from timeline.errors import StorageUnavailableError, UnsafeSetupError

__all__ = ["SqlTable"]

Answer = TypeVar("Answer")


class SqlTable:
    """
    Statements about one table, which they name ``{table}``.

    Args:
        database: Where it lies; closed with this one.
        name: Of the table, checked by the settings.
        columns: What follows its name when it is created.
        may_create: Whether a missing one is made.
    """

    def __init__(self, database: Database, name: str, *, columns: str, may_create: bool) -> None:
        self.database = database
        self._name = name
        self._columns = columns
        self._may_create = may_create

    @property
    def address(self) -> str:
        """Database and table; equal for all that mean them."""
        return f"{self.database.address}#{self._name}"

    def rows(self, statement: str, values: Sequence[Value] = ()) -> list[Row]:
        """
        Run a query, once more after a lost answer.

        Raises:
            NoTable: It is missing.
            StorageUnavailableError: No answer.
            UnsafeSetupError: Waiting does not help.
        """
        return self._asked(lambda: self.database.rows(self._spelled(statement), values))

    def change(self, statement: str, values: Sequence[Value] = ()) -> int:
        """Run a change that may be done twice and tell the rows it met. Raises: as ``rows``."""
        return self._asked(lambda: self.database.change(self._spelled(statement), values))

    def change_once(self, statement: str, values: Sequence[Value] = ()) -> int:
        """Run a change a single time. Raises: as ``Database.change``."""
        return self.database.change(self._spelled(statement), values)

    def make(self, missing: NoTable) -> None:
        """
        Create the table.

        Raises:
            UnsafeSetupError: That is not wished; tells the statement.
            StorageUnavailableError: No answer.
        """
        options = self.database.table_options
        create = f"CREATE TABLE IF NOT EXISTS {self._name} ({self._columns}){options}"
        if not self._may_create:
            raise UnsafeSetupError(
                f"the lock's table is missing; set {OPTIONS['create_table'].key}=true, or run: "
                f"{create}",
                kind="lock_table",
                database=self.database.address,
                table=self._name,
            ) from missing
        try:
            self._asked(lambda: self.database.change(create))
        except RowExists:
            return  # several created it at once; PostgreSQL says so to all but one

    def refuse_unsafe_engine(self) -> None:
        """
        Pass where the rows of a table that is there outlive a crash.

        Raises:
            UnsafeSetupError: They may not.
            StorageUnavailableError: No answer.
        """
        if not self.database.unsafe_engine_sql:
            return
        schema, _, table = self._name.rpartition(".")
        for (engine,) in self.rows(self.database.unsafe_engine_sql, (schema or None, table)):
            raise UnsafeSetupError(
                f"a crash may empty this table, stop all writers and run: ALTER TABLE {self._name}"
                f"{self.database.table_options}; {self.database.address} keeps it in {engine}",
                kind="slot_table_engine",
                database=self.database.address,
                table=self._name,
            )

    def silent(self, why: str) -> StorageUnavailableError:
        """The error of a database that does not answer."""
        return StorageUnavailableError(
            f"the lock database did not answer; look whether it runs: {self.database.address}: "
            f"{why}",
            database=self.database.address,
        )

    def close(self) -> None:
        """Give up the connection."""
        self.database.close()

    def _spelled(self, statement: str) -> str:
        return statement.replace("{table}", self._name)

    def _asked(self, request: Callable[[], Answer]) -> Answer:
        """A request that may be repeated: once more after a lost answer, on a new connection."""
        try:
            try:
                return request()
            except AnswerLost:
                return request()
        except (AnswerLost, Refused) as error:
            raise self.silent(str(error)) from error
