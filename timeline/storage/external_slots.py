"""
A table's storage with an external slot store, for stores without create-if-absent (SLOT-6, CAP-1).

Network file systems without hard links, gateways and some S3-compatible stores overwrite an object
instead of refusing. A table creates three kinds of objects, and only two of them need a decision
that such a store cannot make:

- Commit slots are wholly in the slot store; the storage never contains them.
- Names that two actors may create with different contents (``_CLAIMED``) are claimed in the slot
  store, with their content, and then written. A client that finds a claim without its file writes
  the file, so a claimant that died in between blocks no other client.
- A slot fixes the content of all other objects, requested files of plans included, or a nonce makes
  their names unique. So each writer writes the same bytes. The client checks for such an object,
  then writes it whole. It never reserves it: it may die before it writes the file, and a helper
  (HELP-1) must not take the reservation for the file.

The storage receives no conditional write at all, only whole ones. Rows of the slot store belong to
a table's identity and not to its address. So the rows of a dropped table are never taken for those
of its successor.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from typing import Final
from urllib.parse import quote

from timeline.errors import TableReplacedError
from timeline.model.file_names import HOODIE, SLOTS, TABLE_DESCRIPTOR, TIMELINE
from timeline.ports.ports import (
    AmbiguousWriteError,
    FileStat,
    Ids,
    Names,
    ObjectExistsError,
    ObjectMissingError,
    SlotStore,
    Storage,
    StorageCapabilities,
    slot_store_lost,
)
from timeline.properties.properties_file import (
    TableDescriptor,
    decode_table_descriptor,
    encode_table_descriptor,
)
from timeline.storage.non_atomic import PROBE_FOLDER, NonAtomicStorage

BODIES = ".hoodie/.hoodoo/bodies"
SEEN = ".hoodie/.hoodoo/slots_seen"
BORN = "born"  # folder of the slot store: the identities that an address has had
_INLINE_BYTES_MAX = 256 * 1024  # rows of DynamoDB end at 400 KiB
_POINTER: Final = b"@sha256:"

# : Names that two actors may create with different contents; only one of them may succeed.
_CLAIMED: Final = re.compile(
    r"\.hoodie/(?:"
    # TL-REQ-1: the requested file of a begin, whose times are even (TL-RES-1)
    r"timeline/[0-9]{16}[02468]\.(?:delta|replace)?commit\.requested|"
    r"timeline/history/manifest_[0-9]+|"  # two archivers, each with its own files
    r"\.bucket_index/.+|"  # the first buckets of a partition, of random file ids
    r"hoodie\.properties"  # a table is created once
    rf")|{re.escape(PROBE_FOLDER)}/[^/]+"
)


class ExternalSlotStorage(NonAtomicStorage):
    """
    A table's storage together with the slot store that decides for it.

    Args:
        inner: The table's storage; its creates need not be atomic.
        store: The slot store for slots and claims.
        where: The name of the slot store, equal for all processes that use it.
        key: The table's name in it, equal for all its writers.
        ids: Makes the identity of a table that has none yet.
    """

    def __init__(self, inner: Storage, store: SlotStore, *, where: str, key: str, ids: Ids) -> None:
        super().__init__(inner)
        self._store = store
        self._slots_at = f"{where}#{key}"
        self._births = f"{BORN}/{quote(key, safe='')}"
        self._ids = ids
        self._table_id: str | None = None
        self._is_present = False  # whether the slot store is known to have the table

    @property
    def capabilities(self) -> StorageCapabilities:
        """The promises of the inner storage, with those of the slot store."""
        return replace(self._inner.capabilities, atomic_create=True, slots=self._slots_at)

    def read(self, path: str) -> bytes:
        """Read from the inner storage; a slot comes from the slot store."""
        if not _is_slot(path):
            return self._inner.read(path)
        table_id = self._known_id()
        if table_id is None:
            raise ObjectMissingError(path)
        return self._unpacked(self._store.read(f"{table_id}/{path}"), path)

    def stat(self, path: str) -> FileStat | None:
        """
        Return the entry from the inner storage; a slot's age counts from its first stat.

        Clocks of databases and storages are never compared (HB-2). The first stat writes a stamp on
        the storage, and a slot is at least as old as that.
        """
        if not _is_slot(path):
            return self._inner.stat(path)
        try:
            size_bytes = len(self.read(path))
        except ObjectMissingError:
            return None
        stamp = _stamp_of(path)
        found = self._inner.stat(stamp)
        if found is None:
            self._inner.write(stamp, b"")
            found = self._inner.stat(stamp)
        return None if found is None else replace(found, size_bytes=size_bytes)

    def names(self, folder: str) -> Names:
        """Return names from the inner storage; slots come from the slot store."""
        if folder != SLOTS:
            return self._inner.names(folder)
        table_id = self._known_id()
        return [] if table_id is None else self._store.names(f"{table_id}/{folder}")

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """
        Create if absent; the slot store decides for slots and claimed names.

        Outside: a slot 1 get and 1 create in the slot store, a claimed name 1 stat and 1 write in
        addition, others 1 stat and 1 write.
        """
        if path == TABLE_DESCRIPTOR:
            if self._read_identity(data) != data:
                raise ObjectExistsError(path)
        elif _is_slot(path):
            self._decide(f"{self._present_id()}/{path}", data, path)
        elif _CLAIMED.fullmatch(path):
            self._reserve(path, data, durable=durable)
        else:
            super().create(path, data, durable=durable)

    def delete(self, path: str) -> None:
        """Delete from the inner storage; delete a slot or claim from the slot store, too."""
        if _is_slot(path):
            self._forget(path)
            self._inner.delete(_stamp_of(path))
            return
        if _CLAIMED.fullmatch(path):
            self._forget(path)
        self._inner.delete(path)

    def close(self) -> None:
        """Close the slot store's connections."""
        self._store.close()

    def _reserve(self, path: str, data: bytes, *, durable: bool) -> None:
        name = f"{self._present_id()}/{path}"
        try:
            self._decide(name, data, path)
        except ObjectExistsError:
            self._help(name, path)
            raise
        if self._inner.stat(path) is not None:  # a client without the slot store made it
            self._forget(path)
            raise ObjectExistsError(path)
        self._inner.write(path, data, durable=durable)

    def _help(self, name: str, path: str) -> None:
        """Write a claimed file that is missing: its claimant may be dead."""
        if path.endswith(".requested"):
            return  # no client waits for the begin of another; a late one is a stray (RB-7)
        try:
            data = self._unpacked(self._store.read(name), path)
        except ObjectMissingError:
            return
        if self._inner.stat(path) is None:
            self._inner.write(path, data, durable=True)

    def _decide(self, name: str, data: bytes, path: str) -> None:
        """Create a row; a long content is on the storage, under a name that contains its digest."""
        if len(data) <= _INLINE_BYTES_MAX and not data.startswith(_POINTER):
            packed, body = data, None
        else:
            digest = hashlib.sha256(data).hexdigest()
            packed, body = _POINTER + digest.encode(), f"{BODIES}/{digest}"
            self._inner.write(body, data, durable=True)
        try:
            self._store.create(name, packed)
        except ObjectExistsError:
            # Keep the body if the row is ours, from an earlier request.
            if body is not None and self._row(name) != packed:
                self._inner.delete(body)
            raise ObjectExistsError(path) from None

    def _unpacked(self, row: bytes, path: str) -> bytes:
        if not row.startswith(_POINTER):
            return row
        try:
            return self._inner.read(f"{BODIES}/{row[len(_POINTER) :].decode()}")
        except ObjectMissingError:
            raise ObjectMissingError(path) from None  # truncated since the row was read

    def _forget(self, path: str) -> None:
        """Delete a row first, then its body: a leftover body blocks no name."""
        table_id = self._known_id()
        if table_id is None:
            return
        row = self._row(f"{table_id}/{path}")
        if row is None:
            return
        self._store.delete(f"{table_id}/{path}")
        if row.startswith(_POINTER):
            self._inner.delete(f"{BODIES}/{row[len(_POINTER) :].decode()}")

    def _row(self, name: str) -> bytes | None:
        try:
            return self._store.read(name)
        except ObjectMissingError:
            return None

    def _known_id(self) -> str | None:
        """Return the identity if the table has one; read once. Outside: 1 get."""
        if self._table_id is None:
            try:
                self._table_id = decode_table_descriptor(
                    self._inner.read(TABLE_DESCRIPTOR)
                ).table_id
            except ObjectMissingError:
                return None
        return self._table_id

    def _present_id(self) -> str:
        """
        Return the current identity, made if missing: every decision must belong to this table.

        Raises:
            TableReplacedError: The table was dropped and made again under this handle (F27).
            UnsafeSetupError: The slot store was emptied: it would let taken numbers be taken again.
        """
        facts = decode_table_descriptor(self._read_identity())
        table_id = facts.table_id
        if not self._is_present and facts.slots == self._slots_at:
            if not self._store.names(self._births):
                raise slot_store_lost(self._slots_at)
            self._is_present = True
        if self._table_id not in (None, table_id):
            raise TableReplacedError(
                "the table was dropped and created again while it was open; open the table "
                f"again: {TABLE_DESCRIPTOR}",
                path=TABLE_DESCRIPTOR,
            )
        self._table_id = table_id
        return table_id

    def _read_identity(self, fresh: bytes | None = None) -> bytes:
        """
        Return the content of the table's identity file; the slot store decides its maker.

        Identities at one address are numbered. The newest one belongs to this table, unless its
        table has already lived: then its file existed before the first row, and was deleted with
        the table.
        """
        while True:
            try:
                return self._inner.read(TABLE_DESCRIPTOR)
            except ObjectMissingError:
                pass
            number = max(map(int, self._store.names(self._births)), default=0)
            if number:
                newest = self._store.read(f"{self._births}/{number:06d}")
                if not self._has_lived(decode_table_descriptor(newest).table_id):
                    self._inner.write(TABLE_DESCRIPTOR, newest, durable=True)
                    return newest
                if self._inner.stat(TABLE_DESCRIPTOR) is not None:
                    continue
            if fresh is None:
                fresh = encode_table_descriptor(
                    TableDescriptor(table_id=self._ids.uuid(), slots=self._slots_at)
                )
            try:
                self._store.create(f"{self._births}/{number + 1:06d}", fresh)
            except (ObjectExistsError, AmbiguousWriteError):
                continue  # the next read shows which identity was made (UNK-2)

    def _has_lived(self, table_id: str) -> bool:
        folders = (HOODIE, TIMELINE, SLOTS)  # the first objects that are claimed or decided
        return any(self._store.names(f"{table_id}/{folder}") for folder in folders)


def _is_slot(path: str) -> bool:
    return path.startswith(f"{SLOTS}/")


def _stamp_of(path: str) -> str:
    return f"{SEEN}/{path.rpartition('/')[2]}"
