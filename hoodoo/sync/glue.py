"""
The Glue Data Catalog of AWS as a catalog, by boto3.

Glue compares and replaces: an update names the version of the entry that was read, and Glue rejects
it if the entry has a newer one.
"""

from __future__ import annotations

import os
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
from hoodoo.sync.table_entry import TableEntry
from timeline.errors import HoodooError, UnavailableError, UnsafeSetupError, needs_extra

#: The most items of one request, by Glue's own limits.
_READ_MAX: Final = 1_000
_WRITE_MAX: Final = 100
_DELETE_MAX: Final = 25
_MISSING: Final = "EntityNotFoundException"
_THERE: Final = "AlreadyExistsException"
_CHANGED: Final = frozenset({"ConcurrentModificationException"})
_WAIT: Final = frozenset(
    {
        "InternalServiceException",
        "OperationTimeoutException",
        "ThrottlingException",
        "ResourceNotReadyException",
    }
)
#: Fields of an entry that an update may contain.
_INPUT_FIELDS: Final = (
    "Name",
    "Description",
    "Owner",
    "LastAccessTime",
    "LastAnalyzedTime",
    "Retention",
    "StorageDescriptor",
    "PartitionKeys",
    "ViewOriginalText",
    "ViewExpandedText",
    "TableType",
    "Parameters",
    "TargetTable",
)


class GlueCatalog:
    """
    The entries of the Glue Data Catalog.

    Args:
        settings: Region, endpoint, and the properties of entries.

    Raises:
        MissingExtraError: boto3 is not installed.
        UnsafeSetupError: No region is configured.
    """

    def __init__(self, settings: SyncSettings) -> None:
        with needs_extra("the Glue Data Catalog needs boto3", "glue", package="boto3"):
            import boto3
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError, ClientError
        self._settings = settings
        self._failures = (BotoCoreError, ClientError)
        seconds = settings.timeout_ms / 1000
        try:
            self._glue = boto3.client(
                "glue",
                region_name=settings.glue_region or os.environ.get("AWS_REGION"),
                endpoint_url=settings.glue_endpoint,
                config=Config(
                    connect_timeout=seconds, read_timeout=seconds, retries={"total_max_attempts": 3}
                ),
            )
        except BotoCoreError as error:
            raise UnsafeSetupError(
                "the Glue client cannot be made: set hoodie.aws.glue.region or AWS_REGION: "
                f"{error}",
                kind="sync_refused",
            ) from error

    @property
    def name(self) -> str:
        """The catalog's name and address."""
        return f"the Glue Data Catalog {self._glue.meta.endpoint_url}"

    def ensure_database(self, database: str, *, create: bool) -> None:
        if self._ask("get_database", expected=_MISSING, Name=database) is not None:
            return
        if not create:
            raise missing_database_error(self, database)
        made = {"Name": database, "Description": "created by the sync of a Hudi table"}
        self._ask("create_database", expected=_THERE, DatabaseInput=made)

    def find(self, database: str, name: str) -> FoundEntry | None:
        answer = self._ask("get_table", expected=_MISSING, DatabaseName=database, Name=name)
        if answer is None:
            return None
        raw = answer["Table"]
        if not raw.get("StorageDescriptor", {}).get("SerdeInfo"):
            raise other_object_error(self, database, name)
        return FoundEntry(entry=_entry_of(raw), raw=raw)

    def create(self, entry: TableEntry) -> None:
        made = self._input({}, entry)
        self._ask("create_table", expected=_THERE, DatabaseName=entry.database, TableInput=made)

    def replace(self, found: FoundEntry, entry: TableEntry, *, cascade: bool) -> None:
        self._ask(
            "update_table",
            DatabaseName=entry.database,
            TableInput=self._input(found.raw, entry),
            SkipArchive=self._settings.glue_skip_archive,
            VersionId=str(found.raw.get("VersionId", "")),
        )
        if cascade and entry.partition_columns:
            renewed = FoundEntry(entry=entry, raw=self._input(found.raw, entry))
            self.move_partitions(renewed, self.partitions(entry, None))

    def partitions(self, entry: TableEntry, wanted: Iterable[Values] | None) -> dict[Values, str]:
        place = {"DatabaseName": entry.database, "TableName": entry.name}
        found: dict[Values, str] = {}
        if wanted is None:
            more: dict[str, str] = {}
            while True:
                answer = self._ask("get_partitions", **place, ExcludeColumnSchema=True, **more)
                found |= _locations(answer["Partitions"])
                if not answer.get("NextToken"):
                    return found
                more = {"NextToken": answer["NextToken"]}
        for batch in _batches(wanted, _READ_MAX):
            asked = [{"Values": list(values)} for values in batch]
            answer = self._ask("batch_get_partition", **place, PartitionsToGet=asked)
            found |= _locations(answer.get("Partitions", ()))
        return found

    def add_partitions(self, found: FoundEntry, added: Mapping[Values, str]) -> None:
        for batch in _batches(added.items(), _WRITE_MAX):
            self._batch(
                "batch_create_partition",
                found.entry,
                _THERE,
                PartitionInputList=[_partition(found, *each) for each in batch],
            )

    def move_partitions(self, found: FoundEntry, moved: Mapping[Values, str]) -> None:
        for batch in _batches(moved.items(), _WRITE_MAX):
            entries = [
                {
                    "PartitionValueList": list(values),
                    "PartitionInput": _partition(found, values, place),
                }
                for values, place in batch
            ]
            self._batch("batch_update_partition", found.entry, _MISSING, Entries=entries)

    def drop_partitions(self, entry: TableEntry, dropped: Iterable[Values]) -> None:
        for batch in _batches(dropped, _DELETE_MAX):
            values = [{"Values": list(one)} for one in batch]
            self._batch("batch_delete_partition", entry, _MISSING, PartitionsToDelete=values)

    def close(self) -> None:
        self._glue.close()

    # ---- requests

    def _ask(self, request: str, *, expected: str = "", **values: Any) -> Any:
        """Send a request; return None if Glue answers with the expected error."""
        try:
            return getattr(self._glue, request)(**values)
        except self._failures as error:
            code = getattr(error, "response", {}).get("Error", {}).get("Code", "")
            if expected and code == expected:
                return None
            if code in _CHANGED:
                raise EntryChangedError from error
            raise self._meaning(request, code, str(error)) from error

    def _batch(self, request: str, entry: TableEntry, expected: str, **values: Any) -> None:
        """Send a request for many partitions; each one may fail alone."""
        answer = self._ask(request, DatabaseName=entry.database, TableName=entry.name, **values)
        for one in answer.get("Errors", ()):
            detail = one.get("ErrorDetail", {})
            code = detail.get("ErrorCode", "")
            if code != expected:
                named = one.get("PartitionValues", one.get("PartitionValueList", []))
                raise self._meaning(request, code, f"{named}: {detail.get('ErrorMessage', '')}")

    def _meaning(self, request: str, code: str, text: str) -> HoodooError:
        where = f"{request} at {self._glue.meta.endpoint_url}: {text[:300]}"
        if not code or code in _WAIT:
            return UnavailableError(
                f"Glue did not answer: check the network and the region, then try again: {where}"
            )
        return UnsafeSetupError(
            f"Glue refuses a change: correct the cause that it names, then sync again: {where}",
            kind="sync_refused",
            code=code,
        )

    # ---- Glue's own forms

    def _input(self, raw: Mapping[str, Any], entry: TableEntry) -> dict[str, Any]:
        """Return the input of an entry; it keeps what Glue has beside the facts of the entry."""
        made = {key: raw[key] for key in _INPUT_FIELDS if key in raw}
        descriptor = dict(raw.get("StorageDescriptor", {}))
        serde = dict(descriptor.get("SerdeInfo", {}))
        serde |= {
            "SerializationLibrary": entry.serde,
            "Parameters": dict(entry.serde_properties),
        }
        descriptor |= {
            "Columns": _columns(entry.columns),
            "Location": _s3(entry.location),
            "InputFormat": entry.input_format,
            "OutputFormat": entry.output_format,
            "SerdeInfo": serde,
        }
        return made | {
            "Name": entry.name,
            "TableType": raw.get("TableType", "EXTERNAL_TABLE"),
            "PartitionKeys": _columns(entry.partition_columns),
            "Parameters": dict(entry.properties),
            "StorageDescriptor": descriptor,
        }


def _columns(columns: Sequence[CatalogColumn]) -> list[dict[str, str]]:
    return [{"Name": one.name, "Type": one.kind, "Comment": one.comment} for one in columns]


def _entry_of(raw: Mapping[str, Any]) -> TableEntry:
    def columns(found: Iterable[Mapping[str, str]]) -> tuple[CatalogColumn, ...]:
        return tuple(
            CatalogColumn(one["Name"], one.get("Type", ""), one.get("Comment", "")) for one in found
        )

    descriptor = raw["StorageDescriptor"]
    return TableEntry(
        database=raw["DatabaseName"],
        name=raw["Name"],
        location=descriptor.get("Location", ""),
        columns=columns(descriptor.get("Columns", ())),
        partition_columns=columns(raw.get("PartitionKeys", ())),
        input_format=descriptor.get("InputFormat", ""),
        output_format=descriptor.get("OutputFormat", ""),
        serde=descriptor["SerdeInfo"].get("SerializationLibrary", ""),
        properties=dict(raw.get("Parameters", {})),
        serde_properties=dict(descriptor["SerdeInfo"].get("Parameters", {})),
    )


def _partition(found: FoundEntry, values: Values, location: str) -> dict[str, Any]:
    descriptor = {**found.raw["StorageDescriptor"], "Location": _s3(location)}
    return {"Values": list(values), "StorageDescriptor": descriptor}


def _locations(found: Iterable[Mapping[str, Any]]) -> dict[Values, str]:
    return {tuple(one["Values"]): one["StorageDescriptor"]["Location"] for one in found}


def _s3(location: str) -> str:
    """Return a location as Glue and Athena spell it."""
    scheme, separator, rest = location.partition("://")
    return f"s3://{rest}" if separator and scheme in ("s3a", "s3n") else location


def _batches(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    each = iter(items)
    while batch := list(islice(each, size)):
        yield batch
