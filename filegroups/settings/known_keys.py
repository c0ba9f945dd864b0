"""
The keys that Hudi knows, to detect a misspelled key and suggest the right one.

``hudi_keys.json`` lists the keys of Hudi 1.2 with default, older spellings and a line of
explanation. hoodoo's own keys are in ``filegroups.settings.option_table`` and in the packages that
declare more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Final

from filegroups.settings.option_table import READ_OPTIONS, WRITE_OPTIONS

__all__ = [
    "OWN_PREFIXES",
    "SESSION_PREFIX",
    "KnownKey",
    "hudi_keys",
    "is_known_key",
    "is_own_key",
    "main_key",
    "nearest_key",
]

OWN_PREFIXES: Final = ("hoodie.", "hoodoo.")
SESSION_PREFIX: Final = "spark."  # before the key, in the properties of a Spark session only

# Families of keys whose members Hudi does not list.
_FAMILIES: Final = (
    "hoodie.aws.",
    "hoodie.datasource.hive_sync.",
    "hoodie.deltastreamer.",
    "hoodie.gcp.",
    "hoodie.kafka.",
    "hoodie.keygen.",
    "hoodie.meta.sync.",
    "hoodie.metrics.",
    "hoodie.streamer.",
    "hoodie.table.keygenerator.",
)
_TABLE_ID: Final = "hoodoo.table.id"  # in hoodie.properties of tables that hoodoo made


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownKey:
    """One key of Hudi."""

    key: str
    default: str | None
    aliases: tuple[str, ...]
    doc: str


@cache
def hudi_keys() -> Mapping[str, KnownKey]:
    """Return Hudi's keys by each spelling, in lower case."""
    content = files("filegroups.settings").joinpath("hudi_keys.json").read_text(encoding="utf-8")
    found: dict[str, KnownKey] = {}
    for key, (default, aliases, doc) in json.loads(content).items():
        known = KnownKey(key=key, default=default, aliases=tuple(aliases), doc=doc)
        for spelling in (key, *aliases):
            found.setdefault(spelling.casefold(), known)
    return MappingProxyType(found)


@cache
def _own_keys() -> frozenset[str]:
    options = (*WRITE_OPTIONS.values(), *READ_OPTIONS.values())
    spellings = [spelling for option in options for spelling in option.spellings]
    return frozenset(key.casefold() for key in (*spellings, _TABLE_ID))


def is_known_key(key: str) -> bool:
    """Return whether a key, in any case, is one of Hudi's or of this package's options."""
    folded = key.casefold()
    return folded in _own_keys() or folded in hudi_keys() or folded.startswith(_FAMILIES)


def main_key(key: str) -> str:
    """Return Hudi's present name for a key in any case and by any of its names; else the key."""
    known = hudi_keys().get(key.casefold())
    return key if known is None else known.key


def is_own_key(key: str) -> bool:
    """Return whether a key, in any case, is of this package's options or a table's own file."""
    return key.casefold() in _own_keys()


def nearest_key(key: str, others: Iterable[str]) -> str | None:
    """Return the known key with the most similar spelling; None if none is similar."""
    candidates = (*hudi_keys(), *_own_keys(), *others)
    wanted = key.casefold().removeprefix(SESSION_PREFIX)
    matches = get_close_matches(wanted, candidates, n=1, cutoff=0.8)
    return main_key(matches[0]) if matches else None
