"""
The completed file of a commit, encoded before the lock is taken, with room for its token.

The fencing token of a lease is known under the lock only, where encoding the stats of
thousands of files would keep every other writer waiting. The bytes are therefore made
beforehand with a blank of fixed width, and the token is written over the blank: one copy.
Java reads the token as one more text of the extra metadata.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from timeline.codecs.instant_avro import encode_commit
from timeline.model.commit_metadata import CommitMetadata

__all__ = ["FENCING_TOKEN_KEY", "CommitBody"]

FENCING_TOKEN_KEY: Final = "hoodoo.fencing_token"  # noqa: S105  a key, no secret
"""Key in the extra metadata: the token of the lock that the commit was published under."""

_DIGITS: Final = 20  # all 64-bit numbers, in an order that is also that of the texts
_BLANK: Final = "\0" * _DIGITS


def _text(value: str) -> bytes:
    """A short Avro string: zigzag length, then the bytes."""
    data = value.encode("ascii")
    return bytes((len(data) << 1,)) + data


_ENTRY: Final = _text(FENCING_TOKEN_KEY) + _text(_BLANK)


class CommitBody:
    """
    Metadata of one commit and its bytes, of which only the token may still be missing.

    Args:
        metadata: What the commit did; a token in it is not kept.

    Raises:
        InvalidInputError: A value does not fit its field.
    """

    def __init__(self, metadata: CommitMetadata) -> None:
        self._plain = replace(metadata, extra_metadata=_without_token(metadata))
        self._bytes: bytes | None = None
        with_room = encode_commit(self.metadata_with(_BLANK))
        before, entry, after = with_room.partition(_ENTRY)
        # Nobody writes such text by chance; who does so gets bytes that are encoded later.
        self._room = (before, after) if entry and _ENTRY not in after else None

    def metadata_with(self, token: int | str | None) -> CommitMetadata:
        """The metadata as a reader of the bytes gets it."""
        if token is None:
            return self._plain
        told = {**self._plain.extra_metadata, FENCING_TOKEN_KEY: _digits(token)}
        return replace(self._plain, extra_metadata=told)

    def bytes_with(self, token: int | None) -> bytes:
        """
        The completed file under a token; without one the key is left out.

        Costs a copy with a token. Without one it is encoded once, which needs no hurry: the
        lock is not held then, or its provider counts nothing.
        """
        if token is None:
            if self._bytes is None:
                self._bytes = encode_commit(self._plain)
            return self._bytes
        digits = _digits(token)
        if self._room is None or len(digits) != _DIGITS:
            return encode_commit(self.metadata_with(token))
        before, after = self._room
        return b"".join((before, _text(FENCING_TOKEN_KEY), _text(digits), after))


def _digits(token: int | str) -> str:
    return token if isinstance(token, str) else str(token).zfill(_DIGITS)


def _without_token(metadata: CommitMetadata) -> dict[str, str]:
    return {
        key: value for key, value in metadata.extra_metadata.items() if key != FENCING_TOKEN_KEY
    }
