"""One fixture for the tests of this folder."""

from __future__ import annotations

import pytest

from tests.unit.lockproviders.plain_machine import Machine


@pytest.fixture
def machine() -> Machine:
    return Machine()
