"""
How slots are sealed, from properties: what is asked for, and the keys that sign (SLOT-7).

Keys come from a file that nobody else may read, or from the environment: never as a property,
which tables, logs and command lines show. What a table says of itself does not count, or who may
write into its folder could switch the seals off.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from lockproviders.registry import SlotSettings
from timeline.errors import SettingError, UnsafeSetupError
from timeline.model.slot import SlotSigning, TamperEvidence
from timeline.properties.options import TABLE_LAYER, PropertySet, read_option

__all__ = ["KEY_VARIABLE", "slot_signing_of"]

KEY_VARIABLE: Final = "HOODOO_TAMPER_KEY"
_KEY_CHARACTERS_MIN: Final = 32
_FILE_BYTES_MAX: Final = 64 * 1024
_KEY_FILE: Final = SlotSettings.options["tamper_key_file"]


def slot_signing_of(
    properties: PropertySet, *, environment: Mapping[str, str] | None = None
) -> SlotSigning:
    """
    What a process adds to its slots, and which keys it knows.

    Args:
        properties: All layers; the table's own does not count.
        environment: Where the key is looked for when no file is named; the process's own when None.

    Raises:
        SettingError: Signatures are asked for without a key.
        UnsafeSetupError: The key cannot be read, others may read it, or it is too short.

    Outside: reads the key file once.
    """
    own = properties.without_layer(TABLE_LAYER)
    option = SlotSettings.options["tamper_evidence"]
    evidence = TamperEvidence(read_option(own, option) or option.default)  # empty: not said
    file = read_option(own, _KEY_FILE)
    if environment is None:
        environment = os.environ  # noqa: TID251 - a secret that no property may hold
    if file:
        keys = _keys_in(_content_of(Path(str(file))), f"{_KEY_FILE.key}={file}")
    else:
        keys = _keys_in(environment.get(KEY_VARIABLE, ""), KEY_VARIABLE)
    if evidence is TamperEvidence.HMAC and not keys:
        raise SettingError(
            f"slots cannot be signed without a key; name a file with {_KEY_FILE.key}, or set "
            f"{KEY_VARIABLE}: {option.key}=hmac (from {own.layer_of(option.key)})",
            kind="setting_contradiction",
            key=option.key,
            value="hmac",
            layer=own.layer_of(option.key),
            suggestion=_KEY_FILE.key,
        )
    return SlotSigning(evidence=evidence, keys=keys)


def _keys_in(text: str, where: str) -> tuple[bytes, ...]:
    """One key a line; the first signs, the others are older ones."""
    keys = [line.strip() for line in text.splitlines() if line.strip()]
    if any(len(key) < _KEY_CHARACTERS_MIN for key in keys):
        raise _key_error(f"a key has at least {_KEY_CHARACTERS_MIN} characters", where)
    return tuple(key.encode() for key in keys)


def _content_of(path: Path) -> str:
    where = f"{_KEY_FILE.key}={path}"
    try:
        with path.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            text = opened.read(_FILE_BYTES_MAX).decode("utf-8")
    except (OSError, ValueError) as error:
        raise _key_error(f"it cannot be read ({type(error).__name__})", where) from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise _key_error("others may read it, take their rights away (chmod 600)", where)
    if not text.strip():
        raise _key_error("it is empty, it must hold one key a line", where)
    return text


def _key_error(what: str, where: str) -> UnsafeSetupError:
    return UnsafeSetupError(
        f"the key that signs slots cannot be used; {what}: {where}", kind="tamper_key", where=where
    )
