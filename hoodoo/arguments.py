"""Check the arguments of callers: operations, partitions, filters, batch ids and read sets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias, cast

import pyarrow.compute as pc

from filegroups.reading.filters import Filter
from filegroups.reading.read_set import ReadSet
from timeline.errors import InvalidInputError
from timeline.model.commit_metadata import WriteOperation
from timeline.model.file_names import listed

#: An operation, its name in Hudi, or None for the configured one.
Operation: TypeAlias = WriteOperation | str | None


def to_write_operation(operation: WriteOperation | str) -> WriteOperation:
    """
    Return an operation from itself or from its name in Hudi.

    Raises:
        InvalidInputError: No operation has this name.
    """
    if isinstance(operation, WriteOperation):
        return operation
    try:
        return WriteOperation(str(operation).lower())
    except ValueError:
        known = ", ".join(one.value for one in WriteOperation)
        raise InvalidInputError(
            f"the operation must be one of {known}, not {operation!r}", kind="operation"
        ) from None


def named_partitions(partitions: Sequence[str]) -> tuple[str, ...]:
    """
    Return the partition paths that a caller names.

    Raises:
        InvalidInputError: The list is empty, or not a list of texts.
    """
    if not partitions:
        raise InvalidInputError("name at least one partition path", kind="no_partition")
    return listed(partitions, "partitions")


def filter_or_keys(
    filter: object,  # noqa: A002
    keys: object,
    partitions: object,
    reads: object,
) -> tuple[Filter, object]:
    """
    Return the filter of a delete, or None and its keys.

    Raises:
        InvalidInputError: There is neither (``no_filter``), there are both or an argument of the
            other (``delete_arguments``), or the text of a filter is the name of a file (``filter``).
    """
    is_filter = isinstance(filter, str | pc.Expression) or (
        isinstance(filter, list | tuple)
        and bool(filter)
        and all(isinstance(term, tuple | list) for term in filter)
    )
    if isinstance(filter, str) and re.fullmatch(
        r"\S+\.(parquet|csv|json|jsonl|ndjson|arrow)", filter
    ):
        raise InvalidInputError(
            "the text of a delete is a filter; delete the keys in a file by "
            f"table.delete(keys={filter!r})",
            kind="filter",
        )
    if isinstance(filter, str) and re.fullmatch(r"\s*\d[\w.-]*\s*", filter):
        raise InvalidInputError(
            f"the text of a delete is a filter, and {filter[:80]!r} is no condition; write a "
            "condition like \"id = 5\"; for keys use keys=, for example keys=[{'id': 5}]",
            kind="filter",
        )
    if filter is None and keys is None:
        raise no_filter()
    by_keys = not is_filter and (filter is None or keys is None)
    given = {"keys": keys is not None, "reads": reads is not None}
    wrong = ["partitions"] if by_keys and partitions is not None else []
    wrong += [] if by_keys else [name for name, is_given in given.items() if is_given]
    if wrong:
        raise InvalidInputError(
            "a delete has a filter, which may be narrowed to partitions, or keys, which may have "
            f"reads; leave this out: {', '.join(wrong)}",
            kind="delete_arguments",
            arguments=wrong,
        )
    if by_keys:
        return None, filter if keys is None else keys
    return cast("Filter", filter), None


def no_filter() -> InvalidInputError:
    """Return the error of a statement that does not say which rows it changes."""
    return InvalidInputError(
        "name the rows by a filter, for example \"day < '2026-01-01'\"; 'true' means "
        "all rows, and delete_partitions deletes whole partitions",
        kind="no_filter",
    )


def refuse_other_types(batch_id: object, reads: object, address: str) -> None:
    """
    Check the batch id and the read set of a write to the table at a canonical address.

    Raises:
        InvalidInputError: The batch id is empty or not a text, or ``reads`` is not a read set of
            this table.
    """
    if batch_id is not None and not (isinstance(batch_id, str) and batch_id.strip()):
        raise InvalidInputError(
            f"a batch id must be a text that names the batch, not {batch_id!r}; pass one",
            kind="batch_id",
        )
    if reads is None:
        return
    if not isinstance(reads, ReadSet):
        raise InvalidInputError(
            "reads= must be the result of snapshot.reads(...) of the snapshot that was read, not "
            f"{type(reads).__name__}",
            kind="reads",
        )
    if reads.address != address:
        raise InvalidInputError(
            "the reads of a write must come from the same table, because its slots order both: "
            f"omit reads= of {reads.address}: this is {address}",
            kind="reads_of_another_table",
        )
