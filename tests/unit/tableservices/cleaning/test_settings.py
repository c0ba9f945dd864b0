from __future__ import annotations

import pytest

from tableservices.cleaning.execute import CleaningService
from tableservices.cleaning.plan import CleaningPolicy, CleaningSettings
from timeline.errors import SettingError


def test_defaults_are_hudis() -> None:
    settings = CleaningSettings.from_properties({})
    assert settings == CleaningSettings()
    assert settings.policy is CleaningPolicy.COMMITS
    assert (settings.commits_retained, settings.versions_retained, settings.hours_retained) == (
        10,
        3,
        24,
    )
    assert settings.rolls_back


def test_old_spellings_are_understood() -> None:
    settings = CleaningSettings.from_properties(
        {
            "hoodie.cleaner.policy": "keep_latest_file_versions",
            "hoodie.cleaner.commits.retained": "2",
        }
    )
    assert settings.policy is CleaningPolicy.VERSIONS
    assert settings.commits_retained == 2


@pytest.mark.parametrize(
    ("properties", "inline", "background"),
    [
        ({}, True, False),
        ({"hoodie.clean.async": "true"}, False, True),
        ({"hoodie.clean.automatic": "false"}, False, False),
    ],
)
def test_a_writer_cleans_after_its_commit_or_on_a_thread(
    properties: dict[str, str], inline: bool, background: bool
) -> None:
    service = CleaningService(settings=CleaningSettings.from_properties(properties))
    assert (service.runs_inline, service.runs_in_background) == (inline, background)


def test_eager_policy_leaves_dead_writers_to_the_writers() -> None:
    properties = {"hoodie.clean.failed.writes.policy": "EAGER"}
    assert not CleaningSettings.from_properties(properties).rolls_back


@pytest.mark.parametrize("value", ["0", "-1", "ten"])
def test_a_retention_of_zero_is_refused(value: str) -> None:
    with pytest.raises(SettingError, match=r"hoodie\.clean\.commits\.retained"):
        CleaningSettings.from_properties({"hoodie.clean.commits.retained": value})


@pytest.mark.parametrize(
    ("properties", "cleaned"),
    [
        ({}, ["2024-01", "2024-02", "2025-01", "a,b"]),
        ({"hoodie.clean.partition.filter.regex": "2024-.*"}, ["2024-01", "2024-02"]),
        ({"hoodie.clean.partition.filter.regex": "2024"}, []),
        ({"hoodie.cleaner.partition.filter.selected": "2025-01,none"}, ["2025-01"]),
        (
            {
                "hoodie.clean.partition.filter.regex": "2024-.*",
                "hoodie.clean.partition.filter.selected": "2025-01",
            },
            ["2025-01"],
        ),
    ],
)
def test_a_filter_names_the_partitions_that_are_cleaned(
    properties: dict[str, str], cleaned: list[str]
) -> None:
    settings = CleaningSettings.from_properties(properties)
    partitions = ["2024-01", "2024-02", "2025-01", "a,b"]
    assert [path for path in partitions if settings.cleans(path)] == cleaned


def test_a_filter_that_is_no_expression_is_refused() -> None:
    with pytest.raises(SettingError, match="not a regular expression"):
        CleaningSettings.from_properties({"hoodie.clean.partition.filter.regex": "("})
