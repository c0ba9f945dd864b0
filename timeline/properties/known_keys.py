"""
The keys that Hudi knows, so that a misspelled one is noticed and the right one named.

``hudi_keys.json`` lists the keys of Hudi 1.2 with default, older spellings and a line of
explanation; ours are in ``timeline.properties.option_table`` and in the packages that declare more.
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

from timeline.properties.option_table import READ_OPTIONS, WRITE_OPTIONS
from timeline.properties.options import PropertySet
from timeline.properties.unsupported import UNSUPPORTED, WITHOUT_EFFECT

__all__ = ["KnownKey", "hudi_keys", "is_known_key", "key_warnings"]

OWN_PREFIXES: Final = ("hoodie.", "hoodoo.")

# Families that Hudi has and whose members we neither list nor act on.
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
# In hoodie.properties of every table, written by Hudi itself or, the first, by us.
_TABLE_KEYS: Final = (
    "hoodoo.table.id",
    "hoodie.table.checksum",
    "hoodie.datasource.write.partitionpath.urlencode",
    "hoodie.datasource.write.hive_style_partitioning",
    "hoodie.record.merge.mode",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownKey:
    """One key of Hudi."""

    key: str
    default: str | None
    aliases: tuple[str, ...]
    doc: str


@cache
def hudi_keys() -> Mapping[str, KnownKey]:
    """Every key of Hudi and every older spelling, folded to lower case, with what it means."""
    content = files("timeline.properties").joinpath("hudi_keys.json").read_text(encoding="utf-8")
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
    return frozenset(
        key.casefold() for key in (*spellings, *UNSUPPORTED, *WITHOUT_EFFECT, *_TABLE_KEYS)
    )


def is_known_key(key: str) -> bool:
    """Whether a key, in any case, is one of Hudi's or of this package's options."""
    folded = key.casefold()
    return folded in _own_keys() or folded in hudi_keys() or folded.startswith(_FAMILIES)


def key_warnings(properties: PropertySet, *, also_known: Iterable[str] = ()) -> tuple[str, ...]:
    """
    What a user should hear about keys: misspelled ones, and switches that do nothing here.

    Only keys that begin with ``hoodie.`` or ``hoodoo.`` are judged.

    Args:
        properties: What was said.
        also_known: Keys that other packages declare.

    Returns:
        One text a key, in the order of the properties.
    """
    others = {key.casefold() for key in also_known}
    effects = {key.casefold(): reason for key, reason in WITHOUT_EFFECT.items()}
    texts = []
    for key, value in properties.items():
        folded = key.casefold()
        layer = properties.layer_of(key)
        if folded in effects and value.casefold() == "true":
            texts.append(f"{effects[folded]}, this property has no effect: {key} (from {layer})")
        if not folded.startswith(OWN_PREFIXES) or folded in others or is_known_key(folded):
            continue
        near = _nearest(folded, others)
        hint = f", did you mean {near}" if near else ""
        texts.append(f"unknown property, it is ignored{hint}: {key} (from {layer})")
    return tuple(texts)


def _nearest(folded: str, others: Iterable[str]) -> str | None:
    candidates = (*hudi_keys(), *_own_keys(), *others)
    matches = get_close_matches(folded, candidates, n=1, cutoff=0.8)
    return matches[0] if matches else None
