"""
The lock port, implemented by interchangeable lock providers.

Each provider is one file or folder (``filesystem.py``, ``inprocess.py``). All providers share
``acquire.py`` (waiting), ``lease.py`` (holding) and ``registry.py`` (choosing). To add a provider,
read ``client.py`` and ``hookspecs.py``, and subclass ``testing/suite.py``.
"""

from __future__ import annotations

from lockproviders.acquire import HeldLease, LockPorts, ProviderLock, WaitBudget
from lockproviders.client import Holding, LockClient, describe_owner
from lockproviders.doctor import LockCheck, LockExamination, examine
from lockproviders.hookspecs import (
    LockCapabilities,
    LockContext,
    LockProviderEntry,
    hookimpl,
)
from lockproviders.registry import ProviderRegistry, build_lock
from lockproviders.settings import LockSettings, default_provider

__all__ = [
    "HeldLease",
    "Holding",
    "LockCapabilities",
    "LockCheck",
    "LockClient",
    "LockContext",
    "LockExamination",
    "LockPorts",
    "LockProviderEntry",
    "LockSettings",
    "ProviderLock",
    "ProviderRegistry",
    "WaitBudget",
    "build_lock",
    "default_provider",
    "describe_owner",
    "examine",
    "hookimpl",
]
