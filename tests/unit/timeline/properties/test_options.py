"""Properties keep their layer, later layers win, and errors name the accepted texts."""

from __future__ import annotations

import copy
import pickle

import pytest

from timeline.errors import SettingError
from timeline.properties.options import (
    Option,
    OptionKind,
    PropertySet,
    as_property_set,
    parse_option,
    read_option,
)
from timeline.redaction import redact

RETAINED = Option(
    key="hoodie.clean.commits.retained",
    default="10",
    aliases=("hoodie.cleaner.commits.retained",),
    kind=OptionKind.INT,
)


def two_layers() -> PropertySet:
    lower = PropertySet().with_layer("file", {"hoodie.table.name": "a", "only.file": "1"})
    return lower.with_layer("code", {"hoodie.table.name": "b"})


def test_a_later_layer_wins_and_is_named() -> None:
    properties = two_layers()
    assert dict(properties) == {"hoodie.table.name": "b", "only.file": "1"}
    assert properties.layer_of("hoodie.table.name") == "code"
    assert properties.layer_of("only.file") == "file"
    assert properties.layer_of("not.said") == "default"


def test_a_layer_never_changes_the_set_it_is_put_on() -> None:
    lower = PropertySet().with_layer("file", {"a": "1"})
    lower.with_layer("code", {"a": "2"})
    assert lower["a"] == "1"


def test_keys_match_in_any_case_as_spark_lowers_them() -> None:
    option = Option(key="hoodie.datasource.streaming.startOffset")
    properties = as_property_set({"hoodie.datasource.streaming.startoffset": "latest"})
    assert properties.get_option(option) == "latest"
    assert properties["HOODIE.Datasource.Streaming.startOffset"] == "latest"
    assert "Hoodie.datasource.streaming.startOffset" in properties


def test_a_later_layer_wins_even_when_spelled_by_an_alias() -> None:
    properties = (
        PropertySet()
        .with_layer("file", {"hoodie.clean.commits.retained": "3"})
        .with_layer("code", {"hoodie.cleaner.commits.retained": "7"})
    )
    assert properties.get_option(RETAINED) == "7"
    assert properties.find(RETAINED) == ("hoodie.cleaner.commits.retained", "7", "code")
    assert read_option(properties, RETAINED) == 7


def test_one_layer_with_two_spellings_and_two_values_is_refused() -> None:
    properties = as_property_set(
        {"hoodie.clean.commits.retained": "3", "hoodie.cleaner.commits.retained": "7"}
    )
    with pytest.raises(SettingError) as caught:
        properties.get_option(RETAINED)
    assert caught.value.kind == "setting_twice"
    assert caught.value.fields["layer"] == "code"


def test_one_layer_with_two_spellings_and_one_value_is_accepted() -> None:
    properties = as_property_set(
        {"hoodie.clean.commits.retained": "3", "hoodie.cleaner.commits.retained": "3"}
    )
    assert read_option(properties, RETAINED) == 3


def test_one_key_in_two_cases_with_two_values_is_refused() -> None:
    with pytest.raises(SettingError) as caught:
        as_property_set({"hoodie.table.name": "a", "Hoodie.Table.Name": "b"})
    assert caught.value.kind == "setting_twice"


def test_an_unset_option_gives_its_default() -> None:
    assert read_option(PropertySet(), RETAINED) == 10
    assert PropertySet().get_option(RETAINED) is None


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (OptionKind.TEXT, " a b ", "a b"),
        (OptionKind.TEXT, "", ""),
        (OptionKind.INT, "-3", -3),
        (OptionKind.MS, "60000", 60_000),
        (OptionKind.BYTES, "125829120", 125_829_120),
        (OptionKind.FLOAT, "1e-9", 1e-9),
        (OptionKind.BOOL, "TRUE", True),
        (OptionKind.BOOL, "false", False),
        (OptionKind.INT, "  ", None),
        (OptionKind.LIST, "a, b,,c ", ("a", "b", "c")),
        (OptionKind.LIST, "", ()),
        (OptionKind.ENUM, "lazy", "LAZY"),
    ],
)
def test_each_kind_reads_its_texts(kind: OptionKind, text: str, value: object) -> None:
    option = Option(key="k", kind=kind, choices=("EAGER", "LAZY"))
    assert parse_option(option, text) == value


@pytest.mark.parametrize(
    ("kind", "text", "accepted"),
    [
        (OptionKind.INT, "ten", "a whole number"),
        (OptionKind.INT, "1.5", "a whole number"),
        (OptionKind.INT, "9" * 5000, "a whole number"),
        (OptionKind.MS, "10s", "a whole number of milliseconds"),
        (OptionKind.BYTES, "128MB", "a whole number of bytes"),
        (OptionKind.FLOAT, "nan", "a number"),
        (OptionKind.FLOAT, "inf", "a number"),
        (OptionKind.BOOL, "yes", "true or false"),
        (OptionKind.ENUM, "SOON", "one of EAGER, LAZY"),
    ],
)
def test_an_invalid_text_names_key_layer_and_accepted_values(
    kind: OptionKind, text: str, accepted: str
) -> None:
    option = Option(key="k", kind=kind, choices=("EAGER", "LAZY") if kind == "enum" else ())
    with pytest.raises(SettingError) as caught:
        parse_option(option, text, layer="file")
    assert caught.value.fields == {
        "key": "k",
        "value": text,
        "layer": "file",
        "suggestion": accepted,
    }


def test_booleans_and_numbers_become_their_texts() -> None:
    properties = as_property_set({"a": True, "b": 5, "c": " x "})
    assert dict(properties) == {"a": "true", "b": "5", "c": "x"}


@pytest.mark.parametrize("value", [None, ["a"], b"a", "a\0b"])
def test_a_value_that_is_no_plain_value_is_refused(value: object) -> None:
    with pytest.raises(SettingError) as caught:
        as_property_set({"k": value})
    assert caught.value.kind == "setting_type"


@pytest.mark.parametrize(
    "key",
    [
        "hoodie.datasource.hive_sync.password",
        "x.Secret.y",
        "hoodie.token",
        "a.credentials.b",
        "java.security.jaas",
        "sasl.mechanism",
        "fs.s3a.access.key",
        "hoodie.write.commit.callback.http.api.key",
    ],
)
def test_secrets_are_never_shown(key: str) -> None:
    assert redact(key, "canary") == "***"
    assert "canary" not in repr(as_property_set({key: "canary"}))


def test_keys_of_records_and_partitions_are_no_secrets() -> None:
    assert redact("hoodie.datasource.write.recordkey.field", "id") == "id"
    assert redact("hoodie.write.lock.dynamodb.partition_key", "t") == "t"


def test_a_password_inside_an_address_is_never_shown() -> None:
    assert redact("url", "mysql://ann:canary@db:3306/x") == "mysql://***@db:3306/x"


def test_a_secret_that_does_not_parse_is_not_shown_in_the_error() -> None:
    option = Option(key="my.token.count", kind=OptionKind.INT)
    with pytest.raises(SettingError) as caught:
        parse_option(option, "canary")
    assert "canary" not in str(caught.value.as_document())


def test_properties_travel_between_processes() -> None:
    properties = two_layers()
    for other in (pickle.loads(pickle.dumps(properties)), copy.deepcopy(properties)):
        assert other == properties
        assert other.layer_of("hoodie.table.name") == "code"


def test_keys_of_one_prefix_are_found_in_any_case() -> None:
    properties = as_property_set({"Hoodie.Lock.a": "1", "other": "2"})
    assert properties.with_prefix("hoodie.lock.") == {"Hoodie.Lock.a": "1"}


def test_a_layer_can_be_removed_again() -> None:
    both = PropertySet().with_layer("table", {"a": "theirs"}).with_layer("code", {"b": "mine"})
    assert dict(both.without_layer("table")) == {"b": "mine"}
    assert both["a"] == "theirs"
