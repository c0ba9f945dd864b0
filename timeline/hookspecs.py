"""
Hooks for plug-ins that merge records in merge mode CUSTOM, or find further conflicts.

pluggy discovers, typed objects act (architecture rule 6). A plug-in returns ``RecordMerger`` or
``ConflictStrategy`` values, and the engine calls those. A plug-in is a module or object with::

    from hoodoo.plugins import hookimpl


    @hookimpl
    def record_mergers():
        return [CounterMerger()]

that its distribution names under the entry-point group ``hoodoo.plugins``. A table names a
strategy id in its own properties. The caller alone decides which plug-ins may answer to it, with
``hoodoo.plugins.allow`` (SEC4). For an example see ``examples/record_merger_plugin``.
"""

from __future__ import annotations

from collections.abc import Iterable

import pluggy

from timeline.ports.merger import RecordMerger
from timeline.rules.conflicts import ConflictStrategy

hookspec = pluggy.HookspecMarker("hoodoo")


@hookspec
def record_mergers() -> Iterable[RecordMerger]:  # type: ignore[empty-body]
    """Return the record mergers of this plug-in."""


@hookspec
def conflict_strategies() -> Iterable[ConflictStrategy]:  # type: ignore[empty-body]
    """Return strategies for ``hoodie.write.lock.conflict.resolution.strategy`` to offer."""
