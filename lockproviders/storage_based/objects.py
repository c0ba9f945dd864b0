"""
One object that is replaced only when it is the one that was seen: the lock file's transport.

The storage port creates, writes and deletes; it has no conditional replacement, because the
table needs none and local disks have none. The lock needs exactly that and nothing else, so
it has this small client of its own over the same options and the same address.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from timeline.errors import CorruptTableError, UnavailableError, UnsafeSetupError
from timeline.places import LOCKS, check_size
from timeline.ports.storage import AmbiguousWriteError
from timeline.storage.object_address import ObjectAddress
from timeline.storage.object_answers import Fate, fate_of, unavailable

__all__ = ["ChangedError", "ConditionalObject", "Seen", "Tag"]

#: What names one content of the object: S3 and Azure an ETag, GCS a generation.
Tag = tuple[str | None, str | None]

_SETUP = (Fate.DENIED, Fate.NO_BUCKET, Fate.WRONG)


class ChangedError(Exception):
    """The object is not the one that was seen, or was not by the answer: look again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One look at the object."""

    data: bytes
    tag: Tag
    modified_ms: int  # by the store's clock, whole seconds


class ConditionalObject:
    """
    One object.

    Args:
        client: obstore's client of the bucket, which never repeats a request by itself.
        address: The table.
        path: The object's path below the table.
    """

    def __init__(self, client: Any, address: ObjectAddress, path: str) -> None:
        self._client = client
        self._key = address.key_of(path)
        self._clock_key = address.key_of(path.rpartition("/")[0] + "/hoodoo_clock")
        self.address = f"{address.base_uri}/{path}"

    def read(self) -> Seen | None:
        """
        What the object is now, None when there is none. Outside: 1 get.

        Raises:
            UnavailableError: No answer.
            UnsafeSetupError: Access is refused, or there is no such bucket.
            CorruptTableError: It is too large for a lock file.
        """
        import obstore

        try:
            found = obstore.get(self._client, self._key)
            meta = found.meta
            check_size(f"{LOCKS}/{self._key.rpartition('/')[2]}", meta["size"])
            data = found.bytes().to_bytes()
        except CorruptTableError:
            raise
        except Exception as error:
            fate = fate_of(error)
            if fate is Fate.MISSING:
                return None
            raise self._trouble(error, "reading the lock file", fate) from error
        return Seen(
            data=data,
            tag=(meta.get("e_tag"), meta.get("version")),
            modified_ms=int(meta["last_modified"].timestamp() * 1000),
        )

    def put(self, data: bytes, over: Tag | None) -> Tag:
        """
        Replace the content that was seen, or create the object over None. Outside: 1 put.

        Raises:
            ChangedError: The store says that another content is there; of a request that was
                delivered twice this may be the own one (F16).
            AmbiguousWriteError: It may have been done, or still be.
            UnavailableError: It was surely not done.
            UnsafeSetupError: Access is refused, or there is no such bucket.
        """
        import obstore

        mode: Any = "create"
        if over is not None:
            named = zip(("e_tag", "version"), over, strict=True)
            mode = {name: value for name, value in named if value is not None}
        try:
            done = obstore.put(self._client, self._key, data, mode=mode, use_multipart=False)
        except Exception as error:
            fate = fate_of(error)
            if fate in (Fate.EXISTS, Fate.CHANGED, Fate.BUSY, Fate.MISSING):
                raise ChangedError(self.address) from error
            if fate is Fate.UNKNOWN:
                raise AmbiguousWriteError(self.address) from error
            raise self._trouble(error, "writing the lock file", fate) from error
        return done["e_tag"], done["version"]

    def prove(self, nonce: str) -> None:
        """
        See that the store refuses to replace a content that is not there any more.

        Several look-alikes of S3 accept the condition and ignore it; under them everybody
        would have the lock. Outside: 3 puts, on the small object beside.

        Raises:
            UnsafeSetupError: It let an outdated replacement through, or access is refused.
            UnavailableError: No answer.
        """
        import obstore

        try:
            first = obstore.put(self._client, self._clock_key, f"1 {nonce}".encode())
            obstore.put(self._client, self._clock_key, f"2 {nonce}".encode())
            named = {"e_tag": first["e_tag"], "version": first["version"]}
            outdated: Any = {name: value for name, value in named.items() if value is not None}
            obstore.put(self._client, self._clock_key, b"3", mode=outdated, use_multipart=False)
        except Exception as error:
            fate = fate_of(error)
            if fate is Fate.CHANGED:
                return
            raise self._trouble(error, "trying a conditional write", fate) from error
        raise UnsafeSetupError(
            "this store ignores the conditions of a conditional write, so everybody would have "
            f"the lock; name another provider: {self.address}",
            kind="lock_storage",
            path=self.address,
        )

    def store_now_ms(self) -> int:
        """
        The store's clock, from its stamp on a small object beside. Outside: 1 put, 1 head.

        Raises:
            UnavailableError: No answer.
            UnsafeSetupError: Access is refused.
        """
        import obstore

        try:
            obstore.put(self._client, self._clock_key, b"", use_multipart=False)
            found = obstore.head(self._client, self._clock_key)
        except Exception as error:
            raise self._trouble(error, "reading the store's clock", fate_of(error)) from error
        return int(found["last_modified"].timestamp() * 1000)

    def _trouble(
        self, error: Exception, doing: str, fate: Fate
    ) -> UnavailableError | UnsafeSetupError:
        failed = unavailable(error, self.address, doing, fate)
        if fate in _SETUP:
            return UnsafeSetupError(failed.message, kind="lock_storage", **failed.fields)
        return UnavailableError(failed.message, **failed.fields)
