"""
Objects of one bucket, as S3 defines them: whole, versioned by content, written on condition.

Every method does all its work between two awaits of its server, which has one thread. So a
condition and its write are one step, with any delay around them.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass


class RefusedError(Exception):
    """A request that changes nothing; its status and S3's word for the reason."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class Object:
    """One object; a new one takes its place when it is written again."""

    data: bytes
    e_tag: str
    modified_s: float


@dataclass(frozen=True, slots=True)
class Listing:
    """A page of a listing; ``after`` is the start of the next one, None at the end."""

    objects: list[tuple[str, Object]]
    prefixes: list[str]
    after: str | None


class Bucket:
    """All objects, in the order of their names, and uploads that were not finished."""

    def __init__(self) -> None:
        self._objects: dict[str, Object] = {}
        self._names: list[str] = []
        self._uploads: dict[str, dict[int, bytes]] = {}
        self._numbers = itertools.count(1)

    def get(self, key: str) -> Object | None:
        return self._objects.get(key)

    def put(self, key: str, data: bytes, now_s: float, headers: Mapping[str, str]) -> Object:
        """
        Create or replace.

        Raises:
            RefusedError: The condition in the headers does not hold.
        """
        return self._keep(key, Object(data, _tag(data), now_s), headers)

    def delete(self, key: str) -> None:
        if self._objects.pop(key, None) is not None:
            del self._names[bisect.bisect_left(self._names, key)]

    def list(self, prefix: str, delimiter: str, after: str, most: int) -> Listing:
        """
        Names above ``after``; names with the same part before a delimiter are one prefix together.
        """
        objects: list[tuple[str, Object]] = []
        prefixes: list[str] = []
        at = max(bisect.bisect_left(self._names, prefix), bisect.bisect_right(self._names, after))
        last = after
        while at < len(self._names) and self._names[at].startswith(prefix):
            if len(objects) + len(prefixes) == most:
                return Listing(objects, prefixes, last)
            name = self._names[at]
            head, found, _ = name[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if found:
                group = f"{prefix}{head}{delimiter}"
                last = group + "\U0010ffff"
                at = bisect.bisect_left(self._names, last)
                if group > after:
                    prefixes.append(group)
            else:
                objects.append((name, self._objects[name]))
                last = name
                at += 1
        return Listing(objects, prefixes, None)

    def begin_upload(self) -> str:
        upload = f"upload-{next(self._numbers)}"
        self._uploads[upload] = {}
        return upload

    def add_part(self, upload: str, number: int, data: bytes) -> str:
        """Returns the part's tag."""
        self._parts(upload)[number] = data
        return _tag(data)

    def end_upload(self, upload: str, key: str, now_s: float, headers: Mapping[str, str]) -> Object:
        """All parts together are the object. Raises: as ``put``."""
        parts = self._parts(upload)
        data = b"".join(parts[number] for number in sorted(parts))
        tags = b"".join(hashlib.md5(parts[number]).digest() for number in sorted(parts))
        tag = f'"{hashlib.md5(tags).hexdigest()}-{len(parts)}"'
        made = self._keep(key, Object(data, tag, now_s), headers)
        del self._uploads[upload]
        return made

    def drop_upload(self, upload: str) -> None:
        self._uploads.pop(upload, None)

    def _parts(self, upload: str) -> dict[int, bytes]:
        if upload not in self._uploads:
            raise RefusedError(404, "NoSuchUpload")
        return self._uploads[upload]

    def _keep(self, key: str, made: Object, headers: Mapping[str, str]) -> Object:
        there = self._objects.get(key)
        if headers.get("if-none-match") == "*" and there is not None:
            raise RefusedError(412, "PreconditionFailed")
        wanted = headers.get("if-match")
        if wanted is not None:
            if there is None:
                raise RefusedError(404, "NoSuchKey")
            if wanted.strip('"') != there.e_tag.strip('"'):
                raise RefusedError(412, "PreconditionFailed")
        if there is None:
            bisect.insort(self._names, key)
        self._objects[key] = made
        return made


def _tag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'
