"""Keys of base files that store none: computed from the key columns (fmt 4.2, meta columns off)."""

from __future__ import annotations

import pyarrow as pa

from timeline.errors import CorruptTableError, InvalidInputError
from timeline.files.parquet import read_base_file
from timeline.ports.storage import Storage
from timeline.rules.keys import VirtualKeys

__all__ = ["read_virtual_keys"]


def read_virtual_keys(storage: Storage, path: str, keys: VirtualKeys) -> pa.ChunkedArray:
    """
    Compute the record keys of a base file, in the file's order.

    Raises:
        MissingFileError: There is no such file.
        CorruptTableError: The file is damaged, lacks a key column or has rows without a key.

    Outside: 1 open_input.
    """
    columns = list(dict.fromkeys(field.partition(".")[0] for field in keys.fields))
    try:
        rows = read_base_file(storage, path, columns=columns)
        return pa.chunked_array([keys.of(rows)])
    except (InvalidInputError, KeyError) as error:
        raise CorruptTableError(
            "a base file's rows have no key, though the table computes keys from "
            f"{list(keys.fields)}: {path} ({error})",
            kind="bad_base_file",
            path=path,
        ) from error
