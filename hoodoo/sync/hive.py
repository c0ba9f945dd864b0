"""
A Hive Metastore as a catalog, by its Thrift service.

The service compares and replaces: an alteration names the last commit that the entry had, and is
rejected if the entry has another one (since Hive 2.3.10, 3.1.4 and 4). Older services replace
without that comparison; then two syncs at one moment may both win, and the next one repairs it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from hoodoo.sync.catalog import (
    EntryChangedError,
    FoundEntry,
    missing_database_error,
    other_object_error,
)
from hoodoo.sync.columns import CatalogColumn
from hoodoo.sync.partition_values import Values
from hoodoo.sync.settings import SyncSettings
from hoodoo.sync.table_entry import LAST_COMMIT, TableEntry
from lockproviders.hivemetastore.thrift_connection import ThriftConnection, message_of
from timeline.errors import HoodooError, UnsafeSetupError

_MODIFIED: Final = "has been modified"  # the answer to a comparison that failed
_CONNECT_MS: Final = 5_000  # a server that is there accepts at once, also a busy one
_EXTERNAL: Final = "EXTERNAL_TABLE"
#: Characters that Hive escapes in the name of a partition, besides control characters.
_ESCAPED: Final = frozenset("\"#%'*/:=?\\\x7f{[]^")


class _Connection(ThriftConnection):
    ca_key = "hoodoo.sync.metastore.tls.ca"


class HiveMetastore:
    """
    The entries of a metastore.

    Args:
        settings: Where it is, and the size of requests.
        owner: The user that owns the entries made.

    Raises:
        MissingExtraError: The optional packages are not installed.
    """

    def __init__(self, settings: SyncSettings, owner: str) -> None:
        self._settings = settings
        self._owner = owner
        self._wire = _Connection(settings.addresses, settings.verified_by)
        self._types = self._wire.messages.types

    @property
    def name(self) -> str:
        """The catalog's name and address."""
        return f"the Hive Metastore {self._wire.here}"

    def ensure_database(self, database: str, *, create: bool) -> None:
        types = self._types
        try:
            self._ask("get_database", database, expected=(types.NoSuchObjectException,))
        except types.NoSuchObjectException:
            if not create:
                raise missing_database_error(self, database) from None
            made = types.Database(
                name=database, description="created by the sync of a Hudi table", parameters={}
            )
            self._unless("create_database", made, answered=types.AlreadyExistsException)

    def find(self, database: str, name: str) -> FoundEntry | None:
        missing = self._types.NoSuchObjectException
        try:
            raw = self._ask("get_table", database, name, expected=(missing,))
        except missing:
            return None
        if not (raw.sd and raw.sd.serdeInfo and raw.sd.location):
            raise other_object_error(self, database, name)
        return FoundEntry(entry=_entry_of(raw), raw=raw)

    def create(self, entry: TableEntry) -> None:
        types = self._types
        raw = types.Table(
            dbName=entry.database,
            tableName=entry.name,
            owner=self._owner,
            createTime=0,
            lastAccessTime=0,
            retention=0,
            sd=types.StorageDescriptor(serdeInfo=types.SerDeInfo()),
            partitionKeys=self._fields(entry.partition_columns),
            parameters={},
            tableType=_EXTERNAL,
        )
        self._unless("create_table", self._raw(raw, entry), answered=types.AlreadyExistsException)

    def replace(self, found: FoundEntry, entry: TableEntry, *, cascade: bool) -> None:
        properties = {"DO_NOT_UPDATE_STATS": "true"}
        if found.entry.synced.requested_time:
            properties["expected_parameter_key"] = LAST_COMMIT
            properties["expected_parameter_value"] = found.entry.synced.requested_time
        if cascade:
            properties["CASCADE"] = "true"
        context = self._types.EnvironmentContext(properties=properties)
        changed = (self._types.MetaException, self._types.InvalidOperationException)
        try:
            self._ask(
                "alter_table_with_environment_context",
                entry.database,
                entry.name,
                self._raw(copy.deepcopy(found.raw), entry),
                context,
                expected=changed,
            )
        except changed as error:
            if _MODIFIED in message_of(error):
                raise EntryChangedError from error
            raise self._refused(f"{entry.database}.{entry.name}", error) from error

    def partitions(self, entry: TableEntry, wanted: Iterable[Values] | None) -> dict[Values, str]:
        names: Iterable[str]
        if wanted is None:
            names = self._ask("get_partition_names", entry.database, entry.name, -1)
        else:
            names = (_name(entry, values) for values in wanted)
        found: dict[Values, str] = {}
        for batch in self._batches(names):
            for raw in self._ask("get_partitions_by_names", entry.database, entry.name, batch):
                found[tuple(raw.values)] = raw.sd.location
        return found

    def add_partitions(self, found: FoundEntry, added: Mapping[Values, str]) -> None:
        entry = found.entry
        for batch in self._batches(added.items()):
            request = self._types.AddPartitionsRequest(
                dbName=entry.database,
                tblName=entry.name,
                parts=[self._partition(found, *each) for each in batch],
                ifNotExists=True,
                needResult=False,
            )
            self._ask("add_partitions_req", request)

    def move_partitions(self, found: FoundEntry, moved: Mapping[Values, str]) -> None:
        entry = found.entry
        for batch in self._batches(moved.items()):
            parts = [self._partition(found, *each) for each in batch]
            self._ask("alter_partitions", entry.database, entry.name, parts)

    def drop_partitions(self, entry: TableEntry, dropped: Iterable[Values]) -> None:
        missing = self._types.NoSuchObjectException
        for values in dropped:
            place = (entry.database, entry.name, list(values))
            self._unless("drop_partition", *place, False, answered=missing)

    def close(self) -> None:
        self._wire.drop()

    # ---- requests

    def _ask(self, request: str, *values: Any, expected: tuple[type[Exception], ...] = ()) -> Any:
        """Send a request; an answer of the metastore that the caller does not expect is refused."""
        if not self._wire.is_open:
            self._wire.connect(min(self._settings.timeout_ms, _CONNECT_MS))
            self._wire.limit(self._settings.timeout_ms)
        refusals = self._wire.messages.refusals
        try:
            return self._wire.call(request, values, expected=(*expected, *refusals))
        except expected:
            raise
        except refusals as error:
            raise self._refused(request, error) from error

    def _unless(self, request: str, *values: Any, answered: type[Exception]) -> None:
        """Send a request; an answer that another process did it before is no error."""
        try:
            self._ask(request, *values, expected=(answered,))
        except answered:
            return

    def _refused(self, what: str, error: Exception) -> HoodooError:
        return UnsafeSetupError(
            "the metastore refuses a change: correct the cause that it names, then sync again: "
            f"{what} at {self._wire.here}: {type(error).__name__}: {message_of(error)}",
            kind="sync_refused",
        )

    def _batches(self, items: Iterable[Any]) -> Iterator[list[Any]]:
        each = iter(items)
        while batch := list(islice(each, self._settings.batch_size)):
            yield batch

    # ---- the metastore's own forms

    def _fields(self, columns: Sequence[CatalogColumn]) -> list[Any]:
        new = self._types.FieldSchema
        return [new(name=one.name, type=one.kind, comment=one.comment) for one in columns]

    def _raw(self, raw: Any, entry: TableEntry) -> Any:
        """Return the metastore's table with the facts of the entry; it keeps all others."""
        raw.sd.cols = self._fields(entry.columns)
        raw.sd.location = entry.location
        raw.sd.inputFormat = entry.input_format
        raw.sd.outputFormat = entry.output_format
        raw.sd.serdeInfo.serializationLib = entry.serde
        raw.sd.serdeInfo.parameters = dict(entry.serde_properties)
        raw.parameters = dict(entry.properties)
        return raw

    def _partition(self, found: FoundEntry, values: Values, location: str) -> Any:
        sd = copy.copy(found.raw.sd)
        sd.location = location
        return self._types.Partition(
            values=list(values),
            dbName=found.entry.database,
            tableName=found.entry.name,
            createTime=0,
            lastAccessTime=0,
            sd=sd,
            parameters={},
        )


def _entry_of(raw: Any) -> TableEntry:
    def columns(fields: Iterable[Any]) -> tuple[CatalogColumn, ...]:
        return tuple(CatalogColumn(one.name, one.type, one.comment or "") for one in fields)

    return TableEntry(
        database=raw.dbName,
        name=raw.tableName,
        location=raw.sd.location,
        columns=columns(raw.sd.cols),
        partition_columns=columns(raw.partitionKeys or ()),
        input_format=raw.sd.inputFormat,
        output_format=raw.sd.outputFormat,
        serde=raw.sd.serdeInfo.serializationLib,
        properties=dict(raw.parameters or {}),
        serde_properties=dict(raw.sd.serdeInfo.parameters or {}),
    )


def _name(entry: TableEntry, values: Values) -> str:
    """Return the name of a partition, as Hive escapes it."""
    pairs = zip(entry.partition_columns, values, strict=True)
    return "/".join(f"{_escape(column.name)}={_escape(value)}" for column, value in pairs)


def _escape(text: str) -> str:
    return "".join(f"%{ord(one):02X}" if one in _ESCAPED or one < " " else one for one in text)
