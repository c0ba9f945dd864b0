"""
Settings: frozen values, each field of which declares its option.

A field is the one declaration of an option. Its type gives syntax, choices, limits and the unit:
``Annotated[int, OptionKind.MS]``. ``option``, its default value, gives key, default, sentence,
aliases and scope. ``options`` of a class is derived from its fields; documentation, known keys and
``hoodoo config`` read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from enum import Enum
from types import MappingProxyType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, NoReturn, Self, Union
from typing import get_args as arguments_of
from typing import get_origin as origin_of

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from timeline.errors import SettingError
from timeline.properties.options import (
    CODE_LAYER,
    DEFAULT_LAYER,
    HIDDEN,
    Option,
    OptionKind,
    PropertySet,
    as_property_set,
    read_option,
    redact,
)

__all__ = ["LayeredSettings", "OptionSettings", "option"]


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
        said = as_property_set(properties)
        values: dict[str, Any] = {}
        for field, declared in cls.options.items():
            value = read_option(said, declared)
            if said.find(declared) is not None and value not in (None, ""):
                values[field] = value
        try:
            return cls(**values)
        except ValidationError as error:
            raise _setting_error(error, said, cls.options) from None


def _setting_error(
    error: ValidationError, said: PropertySet, options: Mapping[str, Option]
) -> SettingError:
    first = error.errors(include_url=False)[0]
    declared = options[str(first["loc"][0])]
    value = said.get_option(declared) or ""
    layer = said.layer_of(declared.key)
    return SettingError(
        f"{first['msg'].lower()}; {declared.doc.rstrip('.').lower()}, "
        f"default {declared.default}: {declared.key}={value[:200]!a} (from {layer})",
        kind="setting_value",
        key=declared.key,
        value=value,
        layer=layer,
        suggestion=f"default {declared.default}",
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
