"""
Secrets in texts: hidden by the name of a key, in addresses and in what drivers say (SEC5).

Nothing that is shown, logged, raised or written into a table may tell a secret.
"""

from __future__ import annotations

from re import IGNORECASE
from re import compile as pattern
from typing import Final

__all__ = ["HIDDEN", "redact", "redact_text"]

HIDDEN: Final = "***"

# Deliberately not a bare "key": record and partition keys are no secrets. Short words count alone:
# "bypass" and "author" are no secrets, nor is a token that counts.
_HIDDEN_NAME: Final = (
    r"passw|passphrase|pwd|secret|(?<!fencing)(?<!fencing[._])(?<!write_)token|credential|sasl"
    r"|jaas|signature|private[._-]?key|access[._-]?key|account[._-]?key|api[._-]?key"
    r"|auth(?!or(?!iz))|bearer"
    r"|(?<![a-z])(?:pass|sig|sas|pat)(?![a-z])"
)
_SECRET: Final = pattern(_HIDDEN_NAME, IGNORECASE)
_USER_IN_ADDRESS: Final = pattern(
    r"(://)(?:[^/@\s\"']{0,200}@|[^/@\s:\"']{0,200}:(?!\d+(?:/|\Z))[^\s\"'<>?#;]{0,200}@)"
)
_USER_OF_ORACLE: Final = pattern(
    r"(jdbc:[a-z]{1,40}:[a-z0-9]{0,40}:?)[^/@\s:;]{1,200}/[^@\s]{1,200}@", IGNORECASE
)
# A file or file group of a table, below folders that show their columns: ``token=3/f.parquet``.
_LEVEL: Final = r"[^\s/=,&;?\"'<>{}]{0,255}/"
_FILE_OF_TABLE: Final = (
    rf"(?<![^\s/\"'(\[])[\w.-]{{1,80}}={_LEVEL}(?:(?:[\w.-]{{1,80}}=)?{_LEVEL}){{0,20}}"
    r"[\w.-]{0,200}?(?:\.parquet|\.log\.\d|\.hoodie_partition_metadata"
    r"|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}-\d)"
)
# As in a query string, behind a semicolon, in a list of words, in JSON.
_NAMED_SECRET: Final = pattern(
    rf"({_FILE_OF_TABLE})|((?:{_HIDDEN_NAME})[\w.-]{{0,80}})(\s*=\s*|[\"']\s*:\s*)"
    r"""(?:(?:bearer|basic|digest)\s+\S+|\{[^}]*\}?|"(?:[^"\\]|\\.)*"?|'[^']*'?|[^&;\s"']+)""",
    IGNORECASE,
)


def redact(key: str, value: str) -> str:
    """
    The value as it may be shown: secrets hidden, also those inside of addresses.

    An address may have a user and a password before its host, and secrets by their names in its
    query string or behind semicolons.

    Spec: SEC5.
    """
    if _SECRET.search(key):
        return HIDDEN
    return redact_text(value)


def redact_text(text: str) -> str:
    """
    A text from outside, such as a driver's message, without the secrets of its addresses.

    Paths of files of a table stay, whatever its partition columns are called.
    """
    text = _USER_IN_ADDRESS.sub(rf"\g<1>{HIDDEN}@", text)
    text = _USER_OF_ORACLE.sub(rf"\g<1>{HIDDEN}@", text)
    return _NAMED_SECRET.sub(lambda found: found[1] or f"{found[2]}{found[3]}{HIDDEN}", text)
