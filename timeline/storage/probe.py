"""
The proof that a storage really creates an object only when it is absent (CAP-1).

Some stores accept the condition and ignore it (several S3 look-alikes do); a table with
more than one writer on such a store loses commits, so the promise is tried, not believed.
"""

from __future__ import annotations

from timeline.errors import StorageCapabilityError, StorageUnavailableError
from timeline.ports.ids import Ids
from timeline.ports.storage import AmbiguousWriteError, ObjectExistsError, Storage

__all__ = ["PROBE_FOLDER", "prove_atomic_create"]

PROBE_FOLDER = ".hoodie/.hoodoo/probe"


def prove_atomic_create(storage: Storage, ids: Ids) -> None:
    """
    Create one object twice; the second must be told that it exists and change nothing.

    Outside: 2 creates, 1 read, 1 delete.

    Raises:
        StorageCapabilityError: It does not claim to, or does not.
        StorageUnavailableError: No answer, so nothing is known.
    """
    if not storage.capabilities.atomic_create:
        raise _incapable(storage, "it does not claim to")
    path = f"{PROBE_FOLDER}/{ids.nonce()}"
    try:
        storage.create(path, b"first", durable=False)
        try:
            storage.create(path, b"second", durable=False)
        except ObjectExistsError:
            pass
        else:
            raise _incapable(storage, "a second creation was let through")
        if storage.read(path) != b"first":
            raise _incapable(storage, "a refused creation changed the object")
    except AmbiguousWriteError as error:
        # Nothing rests on the object yet, so the next write proves it by another name.
        raise StorageUnavailableError(
            f"the storage did not answer while it was tried; write again: {path}", path=path
        ) from error
    finally:
        storage.delete(path)


def _incapable(storage: Storage, why: str) -> StorageCapabilityError:
    return StorageCapabilityError(
        "this storage does not create an object only when it is absent, so several writers would "
        f"lose each other's commits ({why}); let a database decide (hoodoo.slots.backend), or keep "
        f"the table elsewhere: {storage.base_uri}",
        missing="atomic_create",
        base_uri=storage.base_uri,
    )
