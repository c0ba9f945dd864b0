"""
Write ``docs/configuration.md`` from the option tables, or check that it is up to date.

Usage: python tools/option_docs.py [--check]
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from lockproviders.registry import provider_options
from lockproviders.settings import LOCK_OPTIONS
from lockproviders.slot_stores import SLOT_OPTIONS
from tableservices.archiving.settings import ARCHIVING_OPTIONS
from tableservices.cleaning.settings import CLEANING_OPTIONS
from tableservices.clustering.settings import CLUSTERING_OPTIONS
from tableservices.compaction.settings import COMPACTION_OPTIONS
from tableservices.logcompaction.settings import LOG_COMPACTION_OPTIONS
from tableservices.ttl.settings import TTL_OPTIONS
from tableservices.worker_settings import WORKER_OPTIONS
from timeline.properties.key_options import TIME_OPTIONS
from timeline.properties.option_table import READ_OPTIONS, WRITE_OPTIONS
from timeline.properties.options import Option
from timeline.storage.object_client import STORAGE_OPTIONS

TARGET = Path(__file__).parents[1] / "docs" / "configuration.md"
HEAD = """# Configuration

Made by `tools/option_docs.py` from the option tables; do not edit by hand. The keys are Hudi's; those that begin with
`hoodoo.` are ours alone. Layers, later wins: built-in default, `hudi-defaults.conf` (folder in `HUDI_CONF_DIR`), the
table's `hoodie.properties`, `--props` files, `--hoodie-conf k=v`, the Spark session's `spark.hoodie.*`, options in code.
`hoodoo config show` prints every effective value with the layer it came from.

A key that is known and not supported is refused by name; an unknown `hoodie.` key is told by `hoodoo write` and
`hoodoo config check`, with the nearest known one.
Defaults are Hudi's except: conflict retries 4 (Hudi 0), early conflict detection on, metadata table off, timeline zone UTC,
compression snappy (gzip), log blocks parquet (avro), compaction beside the writes off (on, for streams alone).
"""


def table(title: str, options: Iterable[Option]) -> str:
    """One section."""
    lines = [f"\n## {title}\n", "| Key | Default | Meaning |", "|---|---|---|"]
    for option in sorted({one.key: one for one in options}.values(), key=lambda one: one.key):
        also = f" (also `{'`, `'.join(option.aliases)}`)" if option.aliases else ""
        choices = f" One of {', '.join(option.choices)}." if option.choices else ""
        default = f"`{option.default}`" if option.default else "none"
        lines.append(f"| `{option.key}`{also} | {default} | {option.doc}{choices} |")
    return "\n".join(lines) + "\n"


def of_providers() -> list[Option]:
    """What only some provider reads; the keys all of them share stand before."""
    shared = {option.key for option in (*LOCK_OPTIONS.values(), *WRITE_OPTIONS.values())}
    return [option for option in provider_options() if option.key not in shared]


def page() -> str:
    """The whole page."""
    return (
        HEAD
        + table("Writing", WRITE_OPTIONS.values())
        + table("Folders of times", TIME_OPTIONS.values())
        + table("Reading", READ_OPTIONS.values())
        + table("Object stores", STORAGE_OPTIONS.values())
        + table("Commit slots", SLOT_OPTIONS.values())
        + table("Locks", LOCK_OPTIONS.values())
        + table("Lock providers", of_providers())
        + table("Cleaning", CLEANING_OPTIONS.values())
        + table("Archiving", ARCHIVING_OPTIONS.values())
        + table("Compaction", COMPACTION_OPTIONS.values())
        + table("Log compaction", LOG_COMPACTION_OPTIONS.values())
        + table("Clustering", CLUSTERING_OPTIONS.values())
        + table("Partition TTL", TTL_OPTIONS.values())
        + table("Running services", WORKER_OPTIONS.values())
    )


def main() -> int:
    """Write or check."""
    if "--check" in sys.argv[1:]:
        return 0 if TARGET.read_text() == page() else 1
    TARGET.write_text(page())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
