"""
Addresses of tables in object stores: from the user's text to one canonical form.

The address also names the table's lock, so it must be equal for every spelling (hole 14). The module
is pure, and separate from the clients.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from timeline.errors import InvalidInputError, StorageCapabilityError

# : From the scheme as written to its store. Hadoop's s3a and s3n mean S3.
OBJECT_SCHEMES = {
    "s3": "s3",
    "s3a": "s3",
    "s3n": "s3",
    "gs": "gs",
    "gcs": "gs",
    "az": "az",
    "azure": "az",
    "abfs": "az",
    "abfss": "az",
}

_FORM = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)(/.*)?\Z", re.DOTALL)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}\Z")
_HOST = re.compile(r"([a-z0-9]{3,24})\.(?:dfs|blob)\.([a-z0-9.-]+)\Z")
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}\Z")
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectAddress:
    """The address of a table in an object store."""

    kind: str  # s3, gs or az
    bucket: str  # Azure: the container
    prefix: str  # the table's folder, without outer slashes; "" is the whole bucket
    account: str | None = None  # Azure only; None if the address does not contain it
    domain: str = "core.windows.net"  # Azure only

    @property
    def base_uri(self) -> str:
        """The canonical address, the same for every spelling, without a trailing slash."""
        tail = f"/{self.prefix}" if self.prefix else ""
        if self.kind != "az":
            return f"{self.kind}://{self.bucket}{tail}"
        if self.account is None:
            return f"az://{self.bucket}{tail}"
        return f"abfss://{self.bucket}@{self.account}.dfs.{self.domain}{tail}"

    def key_of(self, path: str) -> str:
        """Return the object's key for a path below the table; ``""`` is the table's folder."""
        if not self.prefix:
            return path
        return f"{self.prefix}/{path}" if path else self.prefix


def is_object_address(text: str) -> bool:
    """Return whether an address names one of the supported object stores."""
    return text.partition("://")[0].lower() in OBJECT_SCHEMES and "://" in text


def parse_object_address(text: str) -> ObjectAddress:
    """
    Parse an address; unescape nothing, and count repeated slashes as one, as in Hadoop.

    Args:
        text: ``s3://bucket/folder`` (also s3a, s3n), ``gs://bucket/folder``,
            ``abfss://container@account.dfs.core.windows.net/folder`` or ``az://container/folder``.

    Raises:
        StorageCapabilityError: The scheme is not one of these object stores.
        InvalidInputError: The address has no bucket, or names a folder that could leave it.
    """
    match = _FORM.match(text)
    kind = OBJECT_SCHEMES.get(match[1].lower()) if match else None
    if match is None or kind is None:
        raise StorageCapabilityError(
            "this is not the address of an object store: write s3://bucket/folder, gs:// or "
            f"abfss://: {text!r}",
            kind="storage_scheme",
            missing=text.partition(":")[0],
            address=text,
        )
    place, folder = match[2], match[3] or ""
    if _FORBIDDEN.search(text):
        _refuse(text, "an address contains no control characters and no backslashes")
    segments = [segment for segment in folder.split("/") if segment]
    if any(segment in (".", "..") for segment in segments):
        _refuse(text, "an address contains no . or .. parts")
    account, domain = None, "core.windows.net"
    if kind == "az" and "@" in place:
        place, _, host = place.partition("@")
        found = _HOST.match(host.lower())
        if found is None:
            _refuse(
                text, "an Azure address is abfss://container@account.dfs.core.windows.net/folder"
            )
        account, domain = found[1], found[2]
    if not _BUCKET.match(place):
        _refuse(text, "an address begins with the name of a bucket, as in s3://bucket/folder")
    return ObjectAddress(
        kind=kind, bucket=place, prefix="/".join(segments), account=account, domain=domain
    )


def with_account(address: ObjectAddress, account: str | None) -> ObjectAddress:
    """
    Add the account from the options to an Azure address that has none itself.

    Raises:
        InvalidInputError: The two differ, or it is not a valid account name.
    """
    if address.kind != "az" or account is None or account == address.account:
        return address
    if address.account is not None or not _ACCOUNT.match(account):
        _refuse(address.base_uri, f"the options name another storage account ({account[:40]!r})")
    return ObjectAddress(
        kind=address.kind,
        bucket=address.bucket,
        prefix=address.prefix,
        account=account,
        domain=address.domain,
    )


def _refuse(text: str, why: str) -> NoReturn:
    raise InvalidInputError(f"{why}; correct it: {text!r}", address=text)
