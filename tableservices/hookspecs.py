"""
The hook by which a plug-in adds a table service of its own.

pluggy discovers, typed objects behave: a plug-in returns ``TableService`` objects built
from the properties. It is loaded only when the caller allows its distribution (SEC4).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pluggy

from tableservices.service import TableService

__all__ = ["PROJECT_NAME", "hookimpl", "table_services"]

PROJECT_NAME = "hoodoo"

hookspec = pluggy.HookspecMarker(PROJECT_NAME)
hookimpl = pluggy.HookimplMarker(PROJECT_NAME)


@hookspec
def table_services(properties: Mapping[str, str]) -> Iterable[TableService]:  # type: ignore[empty-body]
    """The services this plug-in offers under these properties."""
