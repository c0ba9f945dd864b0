"""One fixture for the tests of this folder."""

from __future__ import annotations

import pytest

from tests.unit.tableservices.plain_bench import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()
