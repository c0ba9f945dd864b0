"""Real servers for tests, each a child process started from packages alone, and a faulty wire."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

__all__ = ["server_missing"]


def server_missing(why: str) -> NoReturn:
    """Skip the test that needs a server which is not here; where CI runs, fail it."""
    if os.environ.get("HOODOO_SERVERS") == "required":
        pytest.fail(f"{why}; HOODOO_SERVERS=required", pytrace=False)
    pytest.skip(why)
