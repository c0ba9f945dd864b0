"""
Hide secrets in texts: by the name of a key, in addresses and in drivers' messages (SEC5).

No output, log, error or file of a table may contain a secret.
"""

from __future__ import annotations

from re import IGNORECASE
from re import compile as pattern
from typing import Final

HIDDEN: Final = "***"

# Not a bare "key", because record and partition keys are no secrets. Short words match only alone:
# "bypass" and "author" are no secrets, nor is a fencing token.
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
# A file or file group of a table, below folders named by their columns: ``token=3/f.parquet``.
_LEVEL: Final = r"[^\s/=,&;?\"'<>{}]{0,255}/"
_FILE_OF_TABLE: Final = (
    rf"(?<![^\s/\"'(\[])[\w.-]{{1,80}}={_LEVEL}(?:(?:[\w.-]{{1,80}}=)?{_LEVEL}){{0,20}}"
    r"[\w.-]{0,200}?(?:\.parquet|\.log\.\d|\.hoodie_partition_metadata"
    r"|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}-\d)"
)
# In a query string, after a semicolon, in a list of words, in JSON.
_NAMED_SECRET: Final = pattern(
    rf"({_FILE_OF_TABLE})|((?:{_HIDDEN_NAME})[\w.-]{{0,80}})(\s*=\s*|[\"']\s*:\s*)"
    r"""(?:(?:bearer|basic|digest)\s+\S+|\{[^}]*\}?|"(?:[^"\\]|\\.)*"?|'[^']*'?|[^&;\s"']+)""",
    IGNORECASE,
)


def redact(key: str, value: str) -> str:
    """
    Return the value with secrets hidden, also secrets inside addresses.

    An address may have a user and a password before its host, and secrets by name in its query
    string or after semicolons.

    Spec: SEC5.
    """
    if _SECRET.search(key):
        return HIDDEN
    return redact_text(value)


def redact_text(text: str) -> str:
    """
    Return a text from outside, such as a driver's message, with the secrets of addresses hidden.

    Paths of table files stay unchanged, whatever the partition columns are called.
    """
    text = _USER_IN_ADDRESS.sub(rf"\g<1>{HIDDEN}@", text)
    text = _USER_OF_ORACLE.sub(rf"\g<1>{HIDDEN}@", text)
    return _NAMED_SECRET.sub(lambda found: found[1] or f"{found[2]}{found[3]}{HIDDEN}", text)
