"""The worked example of a lock plug-in passes the suite it is an example of."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from lockproviders.registry import ProviderRegistry

_EXAMPLE = Path(__file__).parents[2] / "examples" / "lock_provider_plugin"
_SPEC = importlib.util.spec_from_file_location(
    "test_hoodoo_sqlite_lock", _EXAMPLE / "test_hoodoo_sqlite_lock.py"
)
_MODULE = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_MODULE)

TestSqliteLock = _MODULE.TestSqliteLock


def test_example_registers_its_provider() -> None:
    registry = ProviderRegistry()
    registry.register(_MODULE.sys.modules["hoodoo_sqlite_lock"], "example")
    assert "sqlite" in registry.known
