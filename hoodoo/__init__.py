"""
hoodoo: an engine for Apache Hudi tables in Python.

    import hoodoo
    table = hoodoo.create_table("flights", schema=schema, record_key=["flight", "day"])
    table.upsert(rows)
    table.to_arrow()
"""

from __future__ import annotations

from filegroups.writing.write import CommitResult
from hoodoo.catalog import create_table, open_table
from hoodoo.table import Table
from timeline.errors import HoodooError, Reaction

__all__ = ["CommitResult", "HoodooError", "Reaction", "Table", "create_table", "open_table"]
