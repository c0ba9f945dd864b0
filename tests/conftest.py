"""Fixtures and hooks for every test; other fixtures are next to their tests."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

# The same examples on every run, so that a red build is red again; nightly draws new ones.
# No bound of time: a busy machine draws slowly, too.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fixed", UNTIMED, derandomize=True, max_examples=60)
settings.register_profile("nightly", UNTIMED, max_examples=1_000, print_blob=True)
settings.load_profile("nightly" if os.environ.get("HOODOO_NIGHTLY") else "fixed")


@pytest.hookimpl(tryfirst=True)  # xdist asks for the groups among the first
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """
    Assign tests to groups that run in one worker, one after the other.

    All tests with a Spark session in this process are one group, because two sessions starve each
    other. The tests of a file that starts servers are one, because each worker would start them. So are
    those that fill both cores with processes of their own (their files name the group ``busy``).
    """
    for item in items:
        if item.get_closest_marker("spark") or item.get_closest_marker("jvm"):
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif item.get_closest_marker("integration") and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(item.path.name))


@pytest.fixture(scope="session")
def nightly() -> bool:
    """Whether this is the long run: more seeds, more rounds."""
    return bool(os.environ.get("HOODOO_NIGHTLY"))
