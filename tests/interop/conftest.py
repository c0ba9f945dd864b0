"""Makes Java Hudi available to every interop test, and puts both engines into one time zone."""

import pytest

from tests.interop.java import java_oracle

__all__ = ["java_oracle"]


@pytest.fixture(autouse=True)
def _in_java_s_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of Java have times of its process, whose zone is UTC unless a test says otherwise."""
    monkeypatch.setenv("TZ", "UTC")
