"""The fixture that all tests of this folder share."""

from __future__ import annotations

import pytest

from tests.unit.lockproviders.plain_machine import Machine


@pytest.fixture
def machine() -> Machine:
    return Machine()
