"""
The base of settings of locks and services: frozen values, read from a table of options.

Each option is declared once, by the field that it sets. All settings share the code that reads
options and names the layer of a wrong text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from timeline.errors import SettingError
from timeline.properties.options import Option, PropertySet, as_property_set, read_option

__all__ = ["OptionSettings"]


class OptionSettings(BaseModel):
    """The settings of one service or lock; its fields are the names of ``options``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    options: ClassVar[Mapping[str, Option]]

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """
        Read these settings from all properties; an empty text counts as absent.

        Raises:
            SettingError: A value has the wrong type or is out of range; names key, value and layer.
        """
        said = as_property_set(properties)
        values: dict[str, Any] = {}
        for field, option in cls.options.items():
            value = read_option(said, option)
            if value not in (None, ""):
                values[field] = value
        try:
            return cls(**values)
        except ValidationError as error:
            raise _setting_error(error, said, cls.options) from None


def _setting_error(
    error: ValidationError, said: PropertySet, options: Mapping[str, Option]
) -> SettingError:
    first = error.errors(include_url=False)[0]
    option = options[str(first["loc"][0])]
    value = said.get_option(option) or ""
    layer = said.layer_of(option.key)
    return SettingError(
        f"{first['msg'].lower()}; {option.doc.rstrip('.').lower()}, "
        f"default {option.default}: {option.key}={value[:200]!a} (from {layer})",
        kind="setting_value",
        key=option.key,
        value=value,
        layer=layer,
        suggestion=f"default {option.default}",
    )
