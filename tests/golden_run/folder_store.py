"""
An object store that keeps its objects as files of a folder, behind the calls of obstore.

The engine uses it as S3: it has conditional puts, entity tags and the times of the fixed machine.
Digests of its files are taken like those of a table on a local disk.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import obstore
import obstore.store
from obstore.exceptions import AlreadyExistsError, PreconditionError

from tests.golden_run.fixed_machine import FixedMachine

_TEMPORARY = ".tmp-"


class _Bytes(bytes):
    """Bytes with the method of the client library."""

    def to_bytes(self) -> bytes:
        return bytes(self)


class _Found:
    """The answer of a get."""

    def __init__(self, meta: dict[str, Any], data: bytes) -> None:
        self.meta = meta
        self._data = data

    def bytes(self) -> _Bytes:
        return _Bytes(self._data)


class FolderStore:
    """
    All buckets are one folder.

    Args:
        machine: Gives the folder, and the times of objects.
    """

    def __init__(self, machine: FixedMachine) -> None:
        self._machine = machine
        self._root = Path(machine.root)
        self._numbers = itertools.count()

    def install(self) -> None:
        """Answer the calls of the client library from now on."""
        obstore.store.S3Store = lambda *_, **_how: self
        for name in (
            "delete",
            "get",
            "get_range",
            "head",
            "list",
            "list_with_delimiter",
            "put",
        ):
            setattr(obstore, name, getattr(self, name))

    def put(self, _store: Any, key: str, data: bytes, *, mode: Any = None, **_how: Any) -> Any:
        path = self._root / key
        if isinstance(mode, dict) and mode.get("e_tag") != self._tag(path):
            raise PreconditionError(f"another content is there: {key}")
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f"{_TEMPORARY}{next(self._numbers)}")
        new.write_bytes(data)
        os.utime(new, ns=(self._machine.file_time_ns,) * 2)
        try:
            if mode == "create":
                os.link(new, path)
            else:
                os.rename(new, path)  # noqa: PTH104 - the call that the machine watches
        except FileExistsError as error:
            raise AlreadyExistsError(f"the object is there: {key}") from error
        finally:
            new.unlink(missing_ok=True)
        return {"e_tag": self._tag(path), "version": None}

    def get(self, store: Any, key: str, *, options: Any = None) -> _Found:
        meta, data = self.head(store, key), (self._root / key).read_bytes()
        suffix = (options or {}).get("range", {}).get("suffix")
        return _Found(meta, data[-suffix:] if suffix else data)

    def get_range(self, _store: Any, key: str, *, start: int, end: int) -> _Bytes:
        return _Bytes((self._root / key).read_bytes()[start:end])

    def head(self, _store: Any, key: str) -> dict[str, Any]:
        path = self._root / key
        if not path.is_file():
            raise FileNotFoundError(key)
        return self._meta(path)

    def list(self, _store: Any, prefix: str | None = None, **_how: Any) -> Iterator[Any]:
        below = self._root / (prefix or "")
        files = sorted(path for path in below.rglob("*") if path.is_file())
        return iter([[self._meta(path) for path in files]])

    def list_with_delimiter(self, _store: Any, prefix: str | None = None) -> dict[str, Any]:
        below = self._root / (prefix or "")
        children = sorted(below.iterdir()) if below.is_dir() else []
        return {
            "common_prefixes": [self._key(path) for path in children if self._has_objects(path)],
            "objects": [self._meta(path) for path in children if path.is_file()],
        }

    def delete(self, _store: Any, keys: str | Sequence[str]) -> None:
        for key in [keys] if isinstance(keys, str) else keys:
            if (self._root / key).is_file():
                os.unlink(self._root / key)  # noqa: PTH108 - the call that the machine watches

    def _meta(self, path: Path) -> dict[str, Any]:
        found = path.stat()
        return {
            "path": self._key(path),
            "last_modified": datetime.fromtimestamp(int(found.st_mtime), UTC),
            "size": found.st_size,
            "e_tag": self._tag(path),
            "version": None,
        }

    def _tag(self, path: Path) -> str | None:
        """Return the entity tag, which differs for equal contents: each put makes another file."""
        if not path.is_file():
            return None
        version = f"{path.stat().st_ino} {path.stat().st_mtime_ns}".encode()
        return hashlib.sha256(version + path.read_bytes()).hexdigest()

    def _key(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix()

    def _has_objects(self, path: Path) -> bool:
        return path.is_dir() and any(child.is_file() for child in path.rglob("*"))
