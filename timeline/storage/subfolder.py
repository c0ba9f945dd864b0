"""A folder of a table as a storage of its own: the metadata table is a Hudi table below ``.hoodie``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO

from timeline.ports.ports import FileStat, Names, Stats, Storage, StorageCapabilities


@dataclass(frozen=True, slots=True)
class SubfolderStorage:
    """
    A storage whose paths begin at a folder of another one.

    Args:
        whole: The table's storage.
        folder: Relative to it, without a trailing slash.
    """

    whole: Storage
    folder: str

    def _inside(self, path: str) -> str:
        return f"{self.folder}/{path}" if path else self.folder

    @property
    def base_uri(self) -> str:
        """As the protocol."""
        return f"{self.whole.base_uri}/{self.folder}"

    @property
    def capabilities(self) -> StorageCapabilities:
        """As the protocol."""
        return self.whole.capabilities

    def now_ms(self) -> int:
        """As the protocol."""
        return self.whole.now_ms()

    def locate(self, path: str) -> str:
        """As the protocol."""
        return self.whole.locate(self._inside(path))

    def read(self, path: str) -> bytes:
        """As the protocol."""
        return self.whole.read(self._inside(path))

    def stat(self, path: str) -> FileStat | None:
        """As the protocol."""
        return self.whole.stat(self._inside(path))

    def list(self, folder: str) -> Stats:
        """As the protocol."""
        return self.whole.list(self._inside(folder))

    def names(self, folder: str) -> Names:
        """As the protocol."""
        return self.whole.names(self._inside(folder))

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """As the protocol."""
        self.whole.create(self._inside(path), data, durable=durable)

    def write(self, path: str, data: bytes, *, durable: bool = False) -> None:
        """As the protocol."""
        self.whole.write(self._inside(path), data, durable=durable)

    def delete(self, path: str) -> None:
        """As the protocol."""
        self.whole.delete(self._inside(path))

    def delete_folder(self, folder: str) -> None:
        """As the protocol."""
        self.whole.delete_folder(self._inside(folder))

    def open_input(self, path: str) -> IO[bytes]:
        """As the protocol."""
        return self.whole.open_input(self._inside(path))

    def open_output(self, path: str) -> IO[bytes]:
        """As the protocol."""
        return self.whole.open_output(self._inside(path))

    def sync_folders(self, folders: Iterable[str]) -> None:
        """As the protocol."""
        self.whole.sync_folders([self._inside(folder) for folder in folders])
