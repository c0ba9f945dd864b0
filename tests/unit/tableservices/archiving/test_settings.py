"""Settings of archiving: Hudi's keys and defaults, and conflicts with cleaning."""

from __future__ import annotations

import pytest

from tableservices.archiving.execute import ArchivingService
from tableservices.archiving.plan import ArchiveRules, ArchivingSettings
from timeline.errors import SettingError


def test_defaults_are_those_of_hudi():
    settings = ArchivingSettings.from_properties({})
    assert (settings.commits_kept_min, settings.commits_kept_max) == (20, 30)


def test_the_default_limits_grow_with_the_retention_of_cleaning():
    settings = ArchivingSettings.from_properties({"hoodie.clean.commits.retained": "20"})
    assert (settings.commits_kept_min, settings.commits_kept_max) == (30, 40)


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({"hoodie.keep.min.commits": "30"}, "archive_range"),
        ({"hoodie.keep.min.commits": "10"}, "archive_retention"),
        (
            {
                "hoodie.clean.commits.retained": "25",
                "hoodie.keep.min.commits": "25",
                "hoodie.keep.max.commits": "26",
            },
            "archive_retention",
        ),
        ({"hoodie.keep.max.commits": "1"}, "setting_value"),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(properties: dict[str, str], kind: str):
    with pytest.raises(SettingError) as caught:
        ArchivingSettings.from_properties(properties)
    assert caught.value.kind == kind


def test_other_cleaning_policies_do_not_limit_archiving():
    by_hours = {"hoodie.clean.policy": "KEEP_LATEST_BY_HOURS", "hoodie.keep.min.commits": "5"}
    assert ArchivingSettings.from_properties(by_hours).commits_kept_min == 5
    off = {"hoodie.archive.automatic": "false", "hoodie.keep.min.commits": "5"}
    assert ArchivingSettings.from_properties(off).commits_kept_min == 5


@pytest.mark.parametrize(
    ("properties", "inline", "background"),
    [
        ({}, True, False),
        ({"hoodie.archive.async": "true"}, False, True),
        ({"hoodie.archive.automatic": "false"}, False, False),
        ({"hoodie.archive.automatic": "false", "hoodie.archive.async": "true"}, False, False),
    ],
)
def test_a_writer_archives_after_its_commit_or_on_a_thread(
    properties: dict[str, str], inline: bool, background: bool
):
    service = ArchivingService(rules=ArchiveRules.from_properties(properties))
    assert (service.runs_inline, service.runs_in_background) == (inline, background)
