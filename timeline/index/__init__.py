"""
Indexes: where does each record key live now.

An index answers for a batch of keys with the file group that holds each (``tag``). The
engine knows it by the protocol below; ``simple`` reads the key columns themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from timeline.ports.executor import Executor
from timeline.ports.storage import Storage

__all__ = ["Index", "IndexedFile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedFile:
    """The newest base file of a file group that may hold keys."""

    file_id: str
    path: str


class Index(Protocol):
    """Finds the file groups of record keys."""

    def tag(
        self,
        storage: Storage,
        executor: Executor,
        base_files: Mapping[str, Sequence[IndexedFile]],
        keys: pa.Array | pa.ChunkedArray,
        partition_paths: pa.Array | pa.ChunkedArray,
    ) -> pa.Array:
        """
        Tell each row's file group.

        Args:
            storage: Where the table lies.
            executor: Looks into several files side by side.
            base_files: Candidates by partition path, in the order of the view.
            keys: Record keys of the rows; may repeat.
            partition_paths: Where each row belongs; a key is looked for there only.

        Shapes: keys (n,), partition_paths (n,) -> file ids (n,), null = a new record.

        Raises:
            MissingFileError: A candidate was cleaned meanwhile; plan anew.
            CorruptTableError: A candidate is damaged.
        """
