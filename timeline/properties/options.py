"""
Options: the ``hoodie.*`` texts of a user, each with the layer that it comes from.

An ``Option`` describes one key (default, aliases, accepted texts); a ``PropertySet`` has the given
texts and their layers. They are separate from the typed settings, because every package declares
its own options with them, and an error about a text names its layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from re import compile as pattern
from typing import Final, NoReturn

from timeline.errors import SettingError
from timeline.model.time_arguments import time_argument_text
from timeline.redaction import HIDDEN, redact

__all__ = [
    "CODE_LAYER",
    "DEFAULT_LAYER",
    "HIDDEN",
    "TABLE_LAYER",
    "Option",
    "OptionKind",
    "OptionValue",
    "PropertySet",
    "as_property_set",
    "parse_option",
    "read_option",
    "redact",
]

DEFAULT_LAYER: Final = "default"
CODE_LAYER: Final = "code"
TABLE_LAYER: Final = "hoodie.properties"  # the table's own file

OptionValue = str | int | float | bool | tuple[str, ...] | None

_INTEGER: Final = pattern(r"[+-]?[0-9]{1,19}")
_TRUE_FALSE: Final = {"true": True, "false": False}


class OptionKind(StrEnum):
    """The syntax of an option's text; milliseconds and bytes are plain integers, as in Hudi."""

    TEXT = "text"
    INT = "int"
    FLOAT = "float"
    BOOL = "bool"
    MS = "ms"
    BYTES = "bytes"
    ENUM = "enum"
    LIST = "list"


_ACCEPTED: Final[Mapping[OptionKind, str]] = {
    OptionKind.TEXT: "a text",
    OptionKind.INT: "a whole number",
    OptionKind.FLOAT: "a number",
    OptionKind.BOOL: "true or false",
    OptionKind.MS: "a whole number of milliseconds",
    OptionKind.BYTES: "a whole number of bytes",
    OptionKind.ENUM: "one of its choices",
    OptionKind.LIST: "names separated by commas",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """
    One key: its meaning and the texts it accepts.

    ``aliases`` are other spellings of the same option (older names, the table's own name for it);
    ``choices`` belong to the kind ``enum`` and are matched in any case. A table's own file may not
    set an option that is ``caller_only``, because every writer of the table could loosen it (SEC4).
    """

    key: str
    default: str | None = None
    aliases: tuple[str, ...] = ()
    kind: OptionKind = OptionKind.TEXT
    choices: tuple[str, ...] = ()
    doc: str = ""
    caller_only: bool = False

    @property
    def accepted(self) -> str:
        """Description of the accepted texts."""
        if self.kind is OptionKind.ENUM:
            return "one of " + ", ".join(self.choices)
        return _ACCEPTED[self.kind]

    @property
    def spellings(self) -> tuple[str, ...]:
        """The key, then its aliases."""
        return (self.key, *self.aliases)


@dataclass(frozen=True, slots=True)
class _Entry:
    key: str  # as spelled
    value: str


@dataclass(frozen=True, slots=True)
class _Layer:
    name: str
    entries: Mapping[str, _Entry]  # by folded key


class PropertySet(Mapping[str, str]):
    """
    Properties from several layers; a later layer wins over an earlier one.

    Immutable. Keys match in any case, because Spark's data source passes options in lower case;
    they are listed in the spelling of the winning layer.
    """

    __slots__ = ("_effective", "_layers")

    def __init__(self, layers: tuple[_Layer, ...] = ()) -> None:
        self._layers = layers
        effective: dict[str, tuple[_Entry, str]] = {}
        for layer in layers:
            for folded, entry in layer.entries.items():
                effective[folded] = (entry, layer.name)
        self._effective = effective

    def with_layer(self, name: str, properties: Mapping[str, object]) -> PropertySet:
        """
        Return the same properties with one more layer on top.

        Texts are trimmed; booleans become ``true`` or ``false``, numbers their digits.

        Raises:
            SettingError: A value is None or not a plain value, or the layer has one key twice, in
                different case and with different values.
        """
        entries: dict[str, _Entry] = {}
        for key, value in properties.items():
            entry = _Entry(key.strip(), _as_text(key, value, name))
            earlier = entries.get(entry.key.casefold())
            if earlier is not None and earlier.value != entry.value:
                _refuse_twice(earlier, entry, name)
            entries[entry.key.casefold()] = entry
        return PropertySet((*self._layers, _Layer(name, entries)))

    def without_layer(self, name: str, *, keep: Iterable[str] = ()) -> PropertySet:
        """Return the same properties without one layer, except for its kept keys."""
        kept = {key.casefold() for key in keep}
        return PropertySet(
            tuple(
                layer
                if layer.name != name
                else _Layer(name, {key: layer.entries[key] for key in kept & layer.entries.keys()})
                for layer in self._layers
            )
        )

    def __getitem__(self, key: str) -> str:
        return self._effective[key.casefold()][0].value

    def __iter__(self) -> Iterator[str]:
        return (entry.key for entry, _ in self._effective.values())

    def __len__(self) -> int:
        return len(self._effective)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key.casefold() in self._effective

    def __repr__(self) -> str:
        shown = {key: redact(key, value) for key, value in self.items()}
        return f"PropertySet({shown!r})"

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers, earliest first."""
        return tuple(layer.name for layer in self._layers)

    def layer_of(self, key: str) -> str:
        """Return the layer that set the key's value; ``default`` if none did."""
        found = self._effective.get(key.casefold())
        return DEFAULT_LAYER if found is None else found[1]

    def find(self, option: Option) -> tuple[str, str, str] | None:
        """
        Return key as spelled, text and layer of an option's value, or None if it is unset.

        The latest layer with any spelling of the option decides.

        Raises:
            SettingError: That layer has it twice with different values.
        """
        for layer in reversed(self._layers):
            entries = [
                layer.entries[spelling.casefold()]
                for spelling in option.spellings
                if spelling.casefold() in layer.entries
            ]
            for other in entries[1:]:
                if other.value != entries[0].value:
                    _refuse_twice(entries[0], other, layer.name)
            if entries:
                return entries[0].key, entries[0].value, layer.name
        return None

    def get_option(self, option: Option) -> str | None:
        """
        Return the text that was set for an option, or None; ignore its default.

        Raises:
            SettingError: One layer has it twice with different values.
        """
        found = self.find(option)
        return None if found is None else found[1]

    def with_prefix(self, prefix: str) -> dict[str, str]:
        """Return the effective properties whose key begins with ``prefix``, in any case."""
        folded = prefix.casefold()
        return {key: value for key, value in self.items() if key.casefold().startswith(folded)}


def as_property_set(properties: PropertySet | Mapping[str, object]) -> PropertySet:
    """Return properties as a ``PropertySet``; a plain mapping becomes the layer ``code``."""
    if isinstance(properties, PropertySet):
        return properties
    return PropertySet().with_layer(CODE_LAYER, properties)


def read_option(properties: PropertySet, option: Option) -> OptionValue:
    """
    Return the typed value of an option: its text, else its default, else None.

    Raises:
        SettingError: The text is not accepted, or one layer contradicts itself.
    """
    found = properties.find(option)
    if found is None:
        if option.default is None:
            return None
        return parse_option(option, option.default)
    key, value, layer = found
    return parse_option(option, value, key=key, layer=layer)


def parse_option(
    option: Option, value: str, *, key: str | None = None, layer: str = DEFAULT_LAYER
) -> OptionValue:
    """
    Convert the text of an option; an empty text of any kind but text is None.

    Args:
        option: The accepted texts.
        value: The text.
        key: The spelling used, for the message; the option's key if None.
        layer: The source of the text, for the message.

    Raises:
        SettingError: The text is not accepted.
    """
    text = value.strip()
    kind = option.kind
    if kind is OptionKind.LIST:
        return _parse_list(text)
    if kind is OptionKind.TEXT:
        return text
    if not text:
        return None
    if kind is OptionKind.BOOL and text.casefold() in _TRUE_FALSE:
        return _TRUE_FALSE[text.casefold()]
    if kind in (OptionKind.INT, OptionKind.MS, OptionKind.BYTES) and _INTEGER.fullmatch(text):
        return int(text)
    if kind is OptionKind.FLOAT:
        number = _parse_float(text)
        if number is not None:
            return number
    for choice in option.choices:
        if choice.casefold() == text.casefold():
            return choice
    return _refuse_text(key or option.key, text, layer, option.accepted)


def _parse_list(text: str) -> tuple[str, ...]:
    parts: Iterable[str] = (part.strip() for part in text.split(","))
    return tuple(part for part in parts if part)


def _parse_float(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    # nan and the infinities are always mistakes
    return number if abs(number) < float("inf") else None


def _as_text(key: str, value: object, layer: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and "\0" not in value:
        return value.strip()
    if isinstance(value, int | float):
        return str(value)
    if (text := time_argument_text(value)) is not None:
        return text
    raise SettingError(
        f"a property must be a text, a number or a boolean, leave it out to unset it: {key} "
        f"(from {layer}) is {type(value).__name__}",
        kind="setting_type",
        key=key,
        value=type(value).__name__,
        layer=layer,
        suggestion="a text, a number or a boolean",
    )


def _refuse_text(key: str, value: str, layer: str, accepted: str) -> NoReturn:
    shown = redact(key, value)
    raise SettingError(
        f"this property accepts {accepted}: {key}={shown} (from {layer})",
        kind="setting_value",
        key=key,
        value=shown,
        layer=layer,
        suggestion=accepted,
    )


def _refuse_twice(one: _Entry, other: _Entry, layer: str) -> NoReturn:
    first, second = redact(one.key, one.value), redact(other.key, other.value)
    raise SettingError(
        f"two spellings of one property differ, keep one of them: {one.key}={first} and "
        f"{other.key}={second} (both from {layer})",
        kind="setting_twice",
        key=one.key,
        value=first,
        layer=layer,
        suggestion=f"remove {other.key}",
    )
