"""
Options: the ``hoodie.*`` texts of a user, each with the layer that it comes from.

An ``Option`` describes one key (default, aliases, accepted texts); a ``PropertySet`` has the given
texts and their layers. A settings class declares its options as fields (``OptionSettings``), and an
error about a text names its layer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import Enum, StrEnum
from types import MappingProxyType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, NoReturn, Self, Union
from typing import get_args as arguments_of
from typing import get_origin as origin_of

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from timeline.errors import SettingError
from timeline.model.time_arguments import time_argument_text
from timeline.redaction import HIDDEN, redact

DEFAULT_LAYER: Final = "default"
CODE_LAYER: Final = "code"
TABLE_LAYER: Final = "hoodie.properties"  # the table's own file

OptionValue = str | int | float | bool | tuple[str, ...] | None

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")
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


def _checked_expression(text: str | None) -> str | None:
    try:
        re.compile(text or "")
    except re.error as error:
        raise ValueError(f"not a regular expression ({error})") from None
    return text


#: Type of an option that is a regular expression.
Expression = Annotated[str | None, AfterValidator(_checked_expression)]

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

        Texts are trimmed, but for a tab alone; booleans become ``true`` or ``false``, numbers their digits.

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
        return _trimmed(value)
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


def _trimmed(text: str) -> str:
    """Return the text without blanks around it; a tab alone is a separator, and stays."""
    return "\t" if set(text) == {"\t"} else text.strip()


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
        return _trimmed(value)
    if isinstance(value, int | float):
        return str(value)
    if (text := time_argument_text(value)) is not None:
        return text
    raise SettingError(
        f"a property must be a text, a number or a boolean; omit it to unset it: {key} (from "
        f"{layer}) is {type(value).__name__}",
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
        "two spellings of one property have different values; remove one of them: "
        f"{one.key}={first} and {other.key}={second} (both from {layer})",
        kind="setting_twice",
        key=one.key,
        value=first,
        layer=layer,
        suggestion=f"remove {other.key}",
    )


# ---- Settings: frozen values, each field of which declares its option
# A field is the one declaration of an option. Its type gives syntax, choices, limits and the unit:
# ``Annotated[int, OptionKind.MS]``. ``option``, its default value, gives key, default, sentence,
# aliases and scope. ``options`` of a class is derived from its fields; documentation, known keys and
# ``hoodoo config`` read it.


def option(
    key: str,
    default: object,
    doc: str,
    *,
    aliases: tuple[str, ...] = (),
    choices: tuple[str, ...] = (),
    caller_only: bool = False,
    **further: Any,
) -> Any:
    """
    Declare the option of a field, as the field's default value.

    Args:
        key: The property's key.
        default: The field's value if the option is unset.
        doc: One sentence for users.
        aliases: Other spellings of the key.
        choices: The accepted texts; by default the values of the field's enum.
        caller_only: Whether a table's own file may not set it.
        further: Arguments of pydantic's ``Field``, as ``repr`` and ``validate_default``.
    """
    field = Field(default, **further)
    field.metadata.append(
        Option(key=key, aliases=aliases, choices=choices, doc=doc, caller_only=caller_only)
    )
    return field


_KINDS: Final[Mapping[object, OptionKind]] = MappingProxyType(
    {
        bool: OptionKind.BOOL,
        int: OptionKind.INT,
        float: OptionKind.FLOAT,
        tuple: OptionKind.LIST,
    }
)


def _completed(declared: Option, annotation: object, default: object) -> Option:
    """Return the option with what its field implies: syntax, choices and the default's text."""
    kind = _type_of(annotation)
    choices = declared.choices
    if isinstance(kind, type) and issubclass(kind, Enum):
        choices = choices or tuple(str(each.value) for each in kind)
    syntax = OptionKind.ENUM if choices else _KINDS.get(kind, OptionKind.TEXT)
    if isinstance(kind, OptionKind):
        syntax = kind
    return replace(declared, kind=syntax, choices=choices, default=_text_of(default))


def _type_of(annotation: object) -> object:
    """Return a field's unit or else its type, without limits and None; None for several types."""
    if origin_of(annotation) is Annotated:
        units = (one for one in arguments_of(annotation) if isinstance(one, OptionKind))
        return next(units, None) or _type_of(arguments_of(annotation)[0])
    if origin_of(annotation) in (Union, UnionType):
        types = [one for one in arguments_of(annotation) if one is not type(None)]
        return _type_of(types[0]) if len(types) == 1 else None
    return origin_of(annotation) or annotation


def _annotation_of(field: FieldInfo) -> object:
    """Return a field's annotation with its unit, which pydantic keeps apart."""
    units = [one for one in field.metadata if isinstance(one, OptionKind)]
    return units[0] if units else field.annotation


def _text_of(value: object) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return format(Decimal(str(value)), "f")
    if isinstance(value, Enum):
        return str(value.value)
    return None if value in (None, "", ()) else str(value)


class OptionSettings(BaseModel):
    """The settings of one service or lock; each field declares its option."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: By the field that the option sets; derived from the fields.
    options: ClassVar[Mapping[str, Option]] = MappingProxyType({})

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        cls.options = MappingProxyType(
            {
                name: _completed(declared, _annotation_of(field), field.default)
                for name, field in cls.model_fields.items()
                for declared in field.metadata
                if isinstance(declared, Option)
            }
        )

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """
        Read these settings from all properties; an empty text counts as absent.

        Raises:
            SettingError: A value has the wrong type or is out of range; names key, value and layer.
        """
        property_set = as_property_set(properties)
        values = {
            field: value for field, value in cls.read_all(property_set)[0].items() if value != ""
        }
        try:
            return cls(**values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = str(first["loc"][0])
            declared, default = cls.options[field], f"default {cls.options[field].default}"
            doc = declared.doc.rstrip(".")
            why = f"{first['msg'].lower()}, {declared.accepted}; {doc}, {default}"
            raise cls.refusal(property_set, field, why, default) from None

    @classmethod
    def read_all(cls, properties: PropertySet) -> tuple[dict[str, Any], dict[str, str]]:
        """
        Return the values of all options that are set, and their layers, by field.

        Raises:
            SettingError: A text is not accepted, or a layer contradicts itself.
        """
        values: dict[str, Any] = {}
        origins: dict[str, str] = {}
        for field, declared in cls.options.items():
            found = properties.find(declared)
            if found is None:
                continue
            origins[field] = found[2]
            value = read_option(properties, declared)
            # an empty text leaves an optional field unset
            if value is not None and (value != "" or declared.default is not None):
                values[field] = value
        return values, origins

    @classmethod
    def refusal(
        cls,
        properties: PropertySet,
        field: str,
        why: str,
        suggestion: str = "",
        *,
        kind: str | None = "setting_value",
        value: str | None = None,
    ) -> SettingError:
        """
        Return the error for an option whose value cannot be used; it hides a secret (SEC5).

        Args:
            properties: The given properties, which know the value's layer.
            field: The field that the option sets.
            why: What is wrong, and what is accepted.
            suggestion: The next step; ``why`` if empty.
            kind: The kind of the error.
            value: A value instead of the given text.
        """
        declared = cls.options[field]
        key, text, layer = properties.find(declared) or (declared.key, "", DEFAULT_LAYER)
        shown = redact(key, text if value is None else value)[:200]
        return SettingError(
            f"{why}: {key}={shown!a} (from {layer})",
            kind=kind,
            key=key,
            value=shown,
            layer=layer,
            suggestion=suggestion or why,
        )

    @classmethod
    def missing(
        cls,
        properties: PropertySet,
        field: str,
        wanted: str,
        needed_by: str,
        *,
        kind: str | None = None,
    ) -> SettingError:
        """
        Return the error for an option that has no value and needs one.

        Args:
            properties: The given properties; an empty text counts as missing.
            field: The field that the option sets.
            wanted: The value that it needs, with an example.
            needed_by: The part that needs it.
            kind: The kind of the error.
        """
        declared = cls.options[field]
        key, _, layer = properties.find(declared) or (declared.key, "", DEFAULT_LAYER)
        return SettingError(
            f"set {key} to {wanted}: {needed_by} needs it",
            kind=kind,
            key=key,
            value="",
            layer=layer,
            suggestion=wanted,
        )


class LayeredSettings(OptionSettings):
    """Settings of which each value knows its layer; errors of code are ``SettingError`` as well."""

    origins: Mapping[str, str] = Field(default_factory=dict, repr=False)

    if not TYPE_CHECKING:

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise _layered_error(error, self.options, values.get("origins", {})) from error

    @classmethod
    def from_properties(cls, properties: PropertySet | Mapping[str, object]) -> Self:
        """
        Read these settings from all properties, each value with its layer.

        Raises:
            SettingError: A text is not accepted, or two layers or options contradict each other.
        """
        values, origins = cls.read_all(as_property_set(properties))
        return cls(**values, origins=origins)

    def origin(self, field: str) -> str:
        """Return the layer that set a field; ``default`` if none did."""
        return self.origins.get(field, DEFAULT_LAYER)

    def refuse(
        self, field: str, message: str, suggestion: str, kind: str = "setting_contradiction"
    ) -> NoReturn:
        """
        Refuse the value of a field.

        Raises:
            SettingError: Always; names key, value, layer and the next step.
        """
        key = self.options[field].key
        shown = _shown(key, getattr(self, field))
        layer = self.origin(field)
        raise SettingError(
            f"{message}: {key}={shown} (from {layer}); {suggestion}",
            kind=kind,
            key=key,
            value=shown,
            layer=layer,
            suggestion=suggestion,
        )


def _layered_error(
    error: ValidationError, options: Mapping[str, Option], origins: Mapping[str, str]
) -> SettingError:
    first = error.errors()[0]
    own = first.get("ctx", {}).get("error")
    if isinstance(own, SettingError):
        return own
    field = str(first["loc"][0]) if first["loc"] else ""
    key = options[field].key if field in options else field
    shown = _shown(key, first["input"])
    layer = origins.get(field, CODE_LAYER)
    accepted = str(first["msg"]).lower()
    return SettingError(
        f"this property is not accepted, {accepted}: {key}={shown} (from {layer})",
        kind="setting_value",
        key=key,
        value=shown,
        layer=layer,
        suggestion=accepted,
    )


def _shown(key: str, value: object) -> str:
    if value is None:
        return "(not set)"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, tuple | list):
        return redact(key, ",".join(str(part) for part in value))
    if isinstance(value, str | int | float):
        return redact(key, str(value).lower() if isinstance(value, bool) else str(value))
    return HIDDEN
