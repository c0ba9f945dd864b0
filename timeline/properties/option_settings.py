"""
What settings of locks and services share: frozen values, read from options by their table.

Options are declared once, by the field each sets; reading them, and telling what is wrong
with which layer's text, is the same for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from timeline.errors import SettingError
from timeline.properties.options import Option, PropertySet, as_property_set, read_option

__all__ = ["OptionSettings"]


class OptionSettings(BaseModel):
    """Settings of one thing; its fields are the names of ``options``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    options: ClassVar[Mapping[str, Option]]

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """
        These settings among all properties; an empty text counts as not said.

        Raises:
            SettingError: A value has the wrong type or is out of range; names key, value
                and layer.
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
