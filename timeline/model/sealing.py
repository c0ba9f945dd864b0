"""
Seals of commit slots: what shows that somebody edited the chain afterwards (SLOT-7).

A slot that is sealed tells the digest of the slot before it and of its own completed file.
Whoever changes, removes or exchanges one has to make every later slot anew; whoever noted the
digest of one of those elsewhere sees it. With a key each slot is signed as well, and nobody
without the key can make one anew.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

__all__ = [
    "DIGEST",
    "NOTHING_BEFORE",
    "NO_SEALS",
    "Seal",
    "Sealing",
    "TamperEvidence",
    "digest_of",
    "key_id_of",
    "signature_of",
]

NOTHING_BEFORE: Final = "0" * 64
"""What the first slot of a chain tells as the digest of the one before it."""

DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_KEY_ID_PURPOSE: Final = b"hoodoo: which key signs slots"


class TamperEvidence(Enum):
    """What a process adds to the slots it takes."""

    NONE = "none"
    HASH = "hash"
    HMAC = "hmac"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """
    What one slot tells of its surroundings.

    ``before`` is the digest of the slot before it, ``file`` that of the completed file, ``key_id``
    says which key signs; empty for none. ``signature``, known once the slot was written, covers
    all else in the slot.
    """

    before: str
    file: str
    key_id: str = ""
    signature: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealing:
    """
    How a process seals, and what it expects of a chain it verifies.

    ``keys`` are known secrets, oldest last: the first signs, all of them verify. They are never
    shown.
    """

    evidence: TamperEvidence = TamperEvidence.NONE
    keys: tuple[bytes, ...] = field(default=(), repr=False)

    @property
    def key(self) -> bytes | None:
        """What signs the slots of this process; None when they are not signed."""
        return self.keys[0] if self.evidence is TamperEvidence.HMAC else None

    def seal(self, before: str, body: bytes) -> Seal | None:
        """
        The seal of a slot that is about to be taken; None when this process seals none.

        Args:
            before: Digest of the slot before it, empty for the first one.
            body: The completed file that it fixes.
        """
        if self.evidence is TamperEvidence.NONE:
            return None
        return Seal(
            before=before or NOTHING_BEFORE,
            file=digest_of(body),
            key_id="" if self.key is None else key_id_of(self.key),
        )


NO_SEALS: Final = Sealing()


def digest_of(data: bytes) -> str:
    """SHA-256, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def signature_of(key: bytes, data: bytes) -> str:
    """HMAC-SHA-256, in hexadecimal."""
    return hmac.new(key, data, hashlib.sha256).hexdigest()


def key_id_of(key: bytes) -> str:
    """Tells keys apart without telling anything about them."""
    return signature_of(key, _KEY_ID_PURPOSE)[:16]
