"""
The hooks by which a plug-in adds table services of its own, or a compaction strategy.

pluggy only discovers plug-ins: a hook returns values, and the engine calls their methods. A plug-in
is loaded only when the caller allows its distribution (SEC4). It is a module or object with, for
example::

    from hoodoo.plugins import hookimpl


    @hookimpl
    def compaction_strategies():
        return [CompactionOrder(name="com.acme.OldestFirst", choose=oldest_first)]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pluggy

from tableservices.compaction.plan import CompactionOrder
from tableservices.service import TableService

hookspec = pluggy.HookspecMarker("hoodoo")


@hookspec
def table_services(properties: Mapping[str, str]) -> Iterable[TableService]:  # type: ignore[empty-body]
    """Return the services of this plug-in for these properties; they run after built-in ones."""


@hookspec
def compaction_strategies(properties: Mapping[str, str]) -> Iterable[CompactionOrder]:  # type: ignore[empty-body]
    """Return strategies for ``hoodie.compaction.strategy``, besides Hudi's own."""
