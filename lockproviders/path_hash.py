"""
The hash of a table's path by which Java's implicit lock variants name their lock.

Its own file because ZooKeeper and DynamoDB share it, and because it deliberately does what
the rest of this engine avoids: it hashes the path as spelled. Java 1.2.0 does not normalise
(its provider was run), so neither may we, or both would lock beside each other; only
``s3a://`` is read as ``s3://``.
"""

from __future__ import annotations

import logging

from lockproviders.hookspecs import LockContext
from timeline.errors import SettingError, UnsafeSetupError
from timeline.properties.options import Option, as_property_set, read_option

__all__ = ["ADDRESS_OPTION", "hashed_address", "path_hash"]

_LOG = logging.getLogger("hoodoo.lock")

SEED = 0xFFFFFFFFDABADABA  # Java's int 0xDABADABA with its sign carried on

ADDRESS_OPTION = Option(
    key="hoodoo.lock.table.address",
    doc=(
        "The table's path as the Java writers spell it, for the implicit lock variants, "
        "which hash it; else the path this writer was given."
    ),
)


def path_hash(address: str, *, extra: str = "zookeeper") -> str:
    """
    XXH64 of a path as Java prints it: 16 upper-case hex digits.

    Args:
        address: The path, exactly as the Java writers are configured.
        extra: What to install when the hash function is missing.

    Raises:
        UnsafeSetupError: The package ``xxhash`` is not installed (kind ``missing_extra``).
    """
    try:
        import xxhash
    except ImportError as error:
        raise UnsafeSetupError(
            f"this lock needs the package xxhash: pip install 'hoodoo[{extra}]'",
            kind="missing_extra",
            extra=extra,
        ) from error
    if address.startswith("s3a://"):
        address = "s3://" + address.removeprefix("s3a://")
    digest: str = xxhash.xxh64_hexdigest(address.encode("utf-8"), seed=SEED)
    return digest.upper()


def hashed_address(context: LockContext) -> str:
    """
    The path whose hash names the lock: the override, else the table as the caller spelled it.

    A spelling that differs from the usual one of the same place (a slash at the end, blanks)
    is told in the log, because a Java writer with the other spelling takes another lock.

    Raises:
        SettingError: There is no path at all.
    """
    said = read_option(as_property_set(context.properties), ADDRESS_OPTION)
    address = str(said) if said else context.table_address
    if not address.strip():
        raise SettingError(
            "the implicit lock is named after the table's path: set hoodie.base.path as the "
            f"Java writers do, or {ADDRESS_OPTION.key}",
            key=ADDRESS_OPTION.key,
            value=address,
            suggestion="the value of hoodie.base.path",
        )
    if address.endswith("/") or address != address.strip():
        _LOG.warning(
            "the implicit lock hashes the table's path as spelled, and this one ends with a "
            "slash or has blanks around it; every writer must spell it the same, see %s: %s",
            ADDRESS_OPTION.key,
            ascii(address),
        )
    return address
