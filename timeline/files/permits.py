"""
Permits to compute: threads that write small files of one table compute one after another.

The interpreter runs one thread at a time anyway. Sixteen that want to run at once only hand
that right around, at every call of Arrow, between processors: of 14 ms of processor time that a
small commit took, 4 were spent so. Big tables are another matter: there Arrow works for long
without the interpreter, and threads are what makes use of all processors.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import pyarrow as pa

from timeline.ports.storage import Storage

__all__ = ["computing", "is_small"]

_SMALL_BYTES = 1 << 20


def is_small(rows: pa.Table) -> bool:
    """Whether making a file of these rows takes about as long as waiting for its disk."""
    return bool(rows.get_total_buffer_size() <= _SMALL_BYTES)  # cheaper to tell than nbytes


def computing(storage: Storage, rows: pa.Table) -> AbstractContextManager[object]:
    """
    Within the block no other thread computes for this table, if there are few rows.

    Nothing may be asked of a port within, or others would wait for its answer as well.

    Args:
        storage: Where the table lies; one without a permit (``GivesPermits``) keeps nobody waiting.
        rows: What is computed with.
    """
    permit: AbstractContextManager[object] | None = getattr(storage, "compute_permit", None)
    return permit if permit is not None and is_small(rows) else nullcontext()
