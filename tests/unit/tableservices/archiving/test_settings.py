"""Settings of archiving: Hudi's keys and defaults, and what contradicts cleaning."""

from __future__ import annotations

import pytest

from tableservices.archiving.plan import archiving_settings
from timeline.errors import SettingError


def test_defaults_are_those_of_hudi():
    settings = archiving_settings({})
    assert (settings.commits_kept_min, settings.commits_kept_max) == (20, 30)
    assert settings.inline


def test_more_is_kept_when_cleaning_retains_more_and_nobody_said_otherwise():
    settings = archiving_settings({"hoodie.clean.commits.retained": "20"})
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
        archiving_settings(properties)
    assert caught.value.kind == kind


def test_what_cleaning_counts_otherwise_contradicts_nothing():
    by_hours = {"hoodie.clean.policy": "KEEP_LATEST_BY_HOURS", "hoodie.keep.min.commits": "5"}
    assert archiving_settings(by_hours).commits_kept_min == 5
    off = {"hoodie.archive.automatic": "false", "hoodie.keep.min.commits": "5"}
    assert not archiving_settings(off).inline


def test_a_writer_archives_after_its_commit_unless_a_worker_does():
    assert not archiving_settings({"hoodie.archive.async": "true"}).inline
