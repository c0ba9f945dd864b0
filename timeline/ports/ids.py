"""The identity port: every random number and name of the engine comes from here."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Ids", "ProcessIdentity"]

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """Who this process is, as others may be told (SEC6: no environment, no stack, no settings)."""

    host: str
    pid: int
    writer_id: str  # unique per process and start
    application: str  # text the user gave (``hoodie.write.application.id``), may be empty

    @property
    def as_metadata(self) -> dict[str, str]:
        """The same for the extra metadata of an instant, where it outlives the slot."""
        told = {
            "hoodoo.writer": self.writer_id,
            "hoodoo.host": self.host,
            "hoodoo.pid": str(self.pid),
        }
        return told | ({"hoodoo.application": self.application} if self.application else {})


class Ids(Protocol):
    """Randomness and identity."""

    def uuid(self) -> str:
        """A random UUID, lower-case hex with dashes."""

    def nonce(self) -> str:
        """128 random bits as 32 hex digits."""

    def jitter(self) -> float:
        """A random number in [0, 1)."""

    def identity(self) -> ProcessIdentity:
        """This process."""
