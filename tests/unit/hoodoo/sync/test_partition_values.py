"""Partition paths become the values that Hudi's extractor classes give."""

from __future__ import annotations

import pytest

from hoodoo.sync.partition_values import EXTRACTORS, values_of_paths
from timeline.errors import InvalidInputError


@pytest.mark.parametrize(
    ("name", "path", "values"),
    [
        ("MultiPartKeysValueExtractor", "eu/7", ("eu", "7")),
        ("MultiPartKeysValueExtractor", "region=eu/hour=7", ("eu", "7")),
        ("HiveStylePartitionValueExtractor", "region=eu", ("eu",)),
        ("SinglePartPartitionValueExtractor", "2026/01/31", ("2026-01-31",)),
        ("SlashEncodedDayPartitionValueExtractor", "2026/1/31", ("2026-01-31",)),
        ("SlashEncodedDayPartitionValueExtractor", "y=2026/m=01/d=31", ("2026-01-31",)),
        ("SlashEncodedHourPartitionValueExtractor", "2026/01/31/23", ("2026-01-31-23",)),
    ],
)
def test_each_class_has_its_rule(name: str, path: str, values: tuple[str, ...]) -> None:
    fields = [f"f{number}" for number in range(len(values))]
    assert values_of_paths([path], fields, EXTRACTORS[name], decode=False) == {values: path}


def test_encoded_values_are_decoded_on_request() -> None:
    assert values_of_paths(["a%2Fb"], ["f"], None, decode=True) == {("a/b",): "a%2Fb"}
    assert values_of_paths(["a%2Fb"], ["f"], None, decode=False) == {("a%2Fb",): "a%2Fb"}


@pytest.mark.parametrize(
    ("name", "paths", "why"),
    [
        ("MultiPartKeysValueExtractor", ["2026/01/31"], "3 values"),
        ("HiveStylePartitionValueExtractor", ["eu"], "column=value"),
        ("SlashEncodedDayPartitionValueExtractor", ["2026/01"], "3 folders"),
        ("SlashEncodedDayPartitionValueExtractor", ["2026/01/xx"], "xx"),
        ("SlashEncodedDayPartitionValueExtractor", ["2026/1/31", "2026/01/31"], "the values of"),
    ],
)
def test_a_path_that_does_not_fit_is_refused_with_the_option(
    name: str, paths: list[str], why: str
) -> None:
    with pytest.raises(InvalidInputError, match=why) as caught:
        values_of_paths(paths, ["f"], EXTRACTORS[name], decode=False)
    assert caught.value.kind == "sync_partition"
    assert "partition_extractor_class" in caught.value.message
