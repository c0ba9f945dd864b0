"""The length of the lock file's lease, and the time limit of one request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from timeline.properties.options import OptionSettings, as_property_set, option

_SECOND_MS = 1_000
_RENEWALS_PER_VALIDITY = 10  # Java's rule; it refuses to start otherwise
_SECONDS_MAX = 7 * 24 * 3_600
_REQUESTS_PER_VALIDITY = 20
_REQUEST_MS_MIN, _REQUEST_MS_MAX = 500, 10_000


_Seconds = Annotated[int, Field(ge=1, le=_SECONDS_MAX)]


class StorageLockOptions(OptionSettings):
    """The options as they are set; ``StorageLockSettings`` is made of them."""

    validity_seconds: _Seconds = option(
        "hoodie.write.lock.storage.validity.timeout.secs",
        300,
        "Seconds until others may take the lock of a holder that does not renew it.",
    )
    renew_seconds: _Seconds = option(
        "hoodie.write.lock.storage.renew.interval.secs",
        30,
        "Seconds between two renewals of Java's holders; at most a tenth of the "
        "validity. hoodoo renews after a third of the validity.",
        aliases=("hoodie.write.lock.storage.heartbeat.poll.secs",),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageLockSettings:
    """Length of a lease, and time limit of one request."""

    validity_ms: int
    request_ms: int

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> StorageLockSettings:
        """
        Read the settings from all properties.

        Raises:
            SettingError: A value is not a number of seconds, or breaks Java's rule that a lease is
                at least ten renewals long.
        """
        given = StorageLockOptions.from_properties(properties)
        validity, renew = given.validity_seconds, given.renew_seconds
        if validity < _RENEWALS_PER_VALIDITY * renew:
            why = f"a lease lasts at least ten renewals (10 x {renew} s), Java rejects less"
            raise given.refusal(as_property_set(properties), "validity_seconds", why)
        return cls.of(validity * _SECOND_MS)

    @classmethod
    def of(cls, validity_ms: int) -> StorageLockSettings:
        """Return settings for a lease of this length; a request gets a twentieth, 0.5 to 10 s."""
        share_ms = validity_ms // _REQUESTS_PER_VALIDITY
        request_ms = max(_REQUEST_MS_MIN, min(share_ms, _REQUEST_MS_MAX))
        return cls(validity_ms=validity_ms, request_ms=request_ms)
