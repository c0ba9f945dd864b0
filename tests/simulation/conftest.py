"""Which seeds the simulation runs: a few by default, many at night, one when asked for."""

from __future__ import annotations

import os

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--sim-seed", type=int, default=None, help="run this one simulated seed and nothing else"
    )


@pytest.fixture(scope="session")
def sim_seed(request: pytest.FixtureRequest) -> int | None:
    """The one seed asked for (``--sim-seed`` or HOODOO_SEED), None for the usual ones."""
    option = request.config.getoption("--sim-seed", default=None)
    fallback = os.environ.get("HOODOO_SEED", "")
    return option if option is not None else int(fallback) if fallback else None
