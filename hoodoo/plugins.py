"""
The imports of a plug-in: the hook marker and the types that its hooks return.

A plug-in is a module or object that its distribution names under the entry-point group
``hoodoo.plugins``. hoodoo loads it only if the caller allows its distribution with
``hoodoo.plugins.allow`` (SEC4). The hooks are ``lock_provider_entries``, ``record_mergers``,
``conflict_strategies``, ``table_services`` and ``compaction_strategies``::

    from hoodoo.plugins import hookimpl


    @hookimpl
    def record_mergers():
        return [CounterMerger()]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from lockproviders.client import LockClient
from lockproviders.hookspecs import LockCapabilities, LockContext, LockProviderEntry
from lockproviders.hookspecs import hookimpl as lock_hookimpl
from tableservices import hookspecs as service_hooks
from tableservices.compaction.plan import CompactionOrder
from tableservices.service import TableService
from timeline.ports.merger import MergedRows, RecordMerger, Versions
from timeline.ports.ports import Clock, Ids
from timeline.properties.options import Option
from timeline.rules.conflicts import ConflictStrategy, Objection
from timeline.system import SystemClock, SystemIds

__all__ = [
    "Clock",
    "CompactionOrder",
    "ConflictStrategy",
    "Ids",
    "LockCapabilities",
    "LockClient",
    "LockContext",
    "LockProviderEntry",
    "MergedRows",
    "Objection",
    "Option",
    "RecordMerger",
    "SystemClock",
    "SystemIds",
    "TableService",
    "Versions",
    "hookimpl",
]

_Hook = TypeVar("_Hook", bound=Callable[..., Any])


def hookimpl(hook: _Hook) -> _Hook:
    """Mark a function or method as the plug-in's implementation of the hook of its name."""
    # A process without table services has no specification of their hooks.
    return lock_hookimpl(hook, optionalhook=hasattr(service_hooks, hook.__name__))
