"""
The hooks by which a plug-in adds table services of its own, or an order of compaction.

pluggy discovers, typed objects behave: a plug-in returns values, everything afterwards is a
call of one. It is loaded only when the caller allows its distribution (SEC4), and is a
module or object with, for example::

    from tableservices.hookspecs import hookimpl


    @hookimpl
    def compaction_strategies():
        return [CompactionOrder(name="com.acme.OldestFirst", choose=oldest_first)]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import pluggy

from tableservices.compaction.plan import CompactionOrder
from tableservices.service import TableService

__all__ = ["PROJECT_NAME", "compaction_strategies", "hookimpl", "table_services"]

PROJECT_NAME = "hoodoo"

hookspec = pluggy.HookspecMarker(PROJECT_NAME)

#: Optional, because who asks plug-ins for locks alone does not know these hooks.
hookimpl: Callable[..., Any] = partial(pluggy.HookimplMarker(PROJECT_NAME), optionalhook=True)


@hookspec
def table_services(properties: Mapping[str, str]) -> Iterable[TableService]:  # type: ignore[empty-body]
    """The services this plug-in offers under these properties; they run after ours."""


@hookspec
def compaction_strategies(properties: Mapping[str, str]) -> Iterable[CompactionOrder]:  # type: ignore[empty-body]
    """What may be named in ``hoodie.compaction.strategy`` beside Hudi's own."""
