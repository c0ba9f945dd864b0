"""A field declares an option once; its syntax, choices and default text follow from it."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import pytest
from pydantic import Field

from timeline.errors import SettingError
from timeline.properties.options import (
    LayeredSettings,
    OptionKind,
    OptionSettings,
    option,
    parse_option,
)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Limits(OptionSettings):
    rows_max: Annotated[int, Field(ge=1)] | None = option("a.rows", None, "Rows.")


class Everything(Limits):
    on: bool = option("a.on", True, "Switch.", aliases=("a.old.on",), caller_only=True)
    share: Annotated[float, Field(gt=0, lt=1)] = option("a.share", 0.000000001, "Share.")
    wait_ms: Annotated[int, OptionKind.MS] = option("a.wait", 1_500, "Wait.")
    size: Annotated[int, OptionKind.BYTES, Field(ge=1)] | None = option("a.size", None, "Size.")
    names: tuple[str, ...] = option("a.names", (), "Names.")
    colour: Colour | None = option("a.colour", Colour.RED, "Colour.")
    codec: str = option("a.codec", "zip", "Codec.", choices=("zip", "none"))
    word: str | Colour = option("a.word", "x", "Word.")
    undeclared: int = 3


@pytest.mark.parametrize(
    ("field", "kind", "default"),
    [
        ("rows_max", OptionKind.INT, None),
        ("on", OptionKind.BOOL, "true"),
        ("share", OptionKind.FLOAT, "0.000000001"),
        ("wait_ms", OptionKind.MS, "1500"),
        ("size", OptionKind.BYTES, None),
        ("names", OptionKind.LIST, None),
        ("colour", OptionKind.ENUM, "red"),
        ("codec", OptionKind.ENUM, "zip"),
        ("word", OptionKind.TEXT, "x"),
    ],
)
def test_syntax_and_default_follow_from_the_field(
    field: str, kind: OptionKind, default: str | None
) -> None:
    declared = Everything.options[field]
    assert (declared.kind, declared.default) == (kind, default)


def test_every_declared_field_has_its_option_and_no_other_has() -> None:
    assert set(Everything.options) == set(Everything.model_fields) - {"undeclared"}
    assert Limits.options.keys() == {"rows_max"}


def test_choices_follow_from_the_enum_unless_they_are_named() -> None:
    assert Everything.options["colour"].choices == ("red", "blue")
    assert Everything.options["codec"].choices == ("zip", "none")


def test_aliases_and_scope_belong_to_the_declaration() -> None:
    declared = Everything.options["on"]
    assert declared.spellings == ("a.on", "a.old.on")
    assert declared.caller_only
    assert not Everything.options["share"].caller_only


def test_a_default_reads_back_as_the_fields_value() -> None:
    defaults = {
        one.key: one.default for one in Everything.options.values() if one.default is not None
    }
    assert Everything.from_properties(defaults) == Everything()
    assert parse_option(Everything.options["share"], "0.000000001") == Everything().share


def test_a_value_outside_the_limits_names_key_default_and_layer() -> None:
    with pytest.raises(SettingError, match=r"Rows, default None: a\.rows='0' \(from code\)"):
        Everything.from_properties({"a.rows": "0"})


def test_layered_settings_know_the_layer_of_each_value() -> None:
    class Layered(LayeredSettings):
        rows: Annotated[int, Field(ge=1)] = option("a.rows", 5, "Rows.")

    assert Layered(rows=2, origins={"rows": "file"}).origin("rows") == "file"
    with pytest.raises(SettingError, match=r"a\.rows=0 \(from file\)") as caught:
        Layered(rows=0, origins={"rows": "file"})
    assert caught.value.fields["layer"] == "file"
    with pytest.raises(SettingError, match=r"too few: a\.rows=5 \(from default\); use more"):
        Layered().refuse("rows", "too few", "use more")
