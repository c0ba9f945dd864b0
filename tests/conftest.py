"""What every test may rely on; nothing clever (style: fixtures live beside their tests)."""

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep all tests with a Spark session in one worker: two sessions starve each other."""
    for item in items:
        if item.get_closest_marker("spark") or item.get_closest_marker("jvm"):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def nightly() -> bool:
    """Whether this is the long run: more seeds, more rounds."""
    return bool(os.environ.get("HOODOO_NIGHTLY"))
