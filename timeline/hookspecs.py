"""
The hooks by which a plug-in merges records of tables in the merge mode CUSTOM, or judges conflicts.

pluggy discovers, typed objects behave (architecture rule 6): a plug-in returns
``RecordMerger`` or ``ConflictStrategy`` values, everything afterwards is a call of one. A
plug-in is a module or object with::

    from timeline.hookspecs import hookimpl


    @hookimpl
    def record_mergers():
        return [CounterMerger()]

named in its distribution under the entry-point group ``hoodoo.plugins``. A table names a
strategy id in its own file; which plug-ins are there to answer to it is said by the caller
alone, with ``hoodoo.plugins.allow`` (SEC4). A worked example is
``examples/record_merger_plugin``.
"""

from __future__ import annotations

from collections.abc import Iterable

import pluggy

from timeline.ports.merger import RecordMerger
from timeline.rules.conflicts import ConflictStrategy

__all__ = ["conflict_strategies", "hookimpl", "record_mergers"]

_PROJECT_NAME = "hoodoo"

hookspec = pluggy.HookspecMarker(_PROJECT_NAME)
hookimpl = pluggy.HookimplMarker(_PROJECT_NAME)


@hookspec
def record_mergers() -> Iterable[RecordMerger]:  # type: ignore[empty-body]
    """The mergers this plug-in offers."""


@hookspec
def conflict_strategies() -> Iterable[ConflictStrategy]:  # type: ignore[empty-body]
    """What may be named in ``hoodie.write.lock.conflict.resolution.strategy`` beside ours."""
