"""
Write the generated pages of ``docs/reference/`` from the option tables, or check that they are up to date.

Usage: python tools/option_docs.py [--check]
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from filegroups.settings.known_keys import effect_of, hudi_keys
from filegroups.settings.read_settings import ReadSettings
from filegroups.settings.settings import WriteSettings
from filegroups.settings.time_settings import TimeSettings
from hoodoo.configuration import declared_keys
from hoodoo.services import service_options
from lockproviders.registry import SlotSettings, provider_options
from lockproviders.settings import LockSettings
from tableservices.archiving.plan import ArchivingSettings
from tableservices.cleaning.plan import CleaningSettings
from tableservices.clustering.settings import ClusteringSettings
from tableservices.compaction.plan import CompactionSettings
from tableservices.logcompaction.execute import LogCompactionSettings
from tableservices.ttl.execute import TtlSettings
from tableservices.worker import WorkerSettings
from timeline.properties.options import Option
from timeline.storage.object_client import ObjectSettings

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
TARGET = REFERENCE / "options.md"
EVERY_KEY = REFERENCE / "hudi-keys.md"
EVERY_HEAD = """# Every key of Hudi 1.2, and what becomes of it

Made by `tools/option_docs.py`; do not edit by hand. A key counts in any case and by its older names.

- **done**: as [options.md](options.md) says.
- **refused**: a write or read that asks for it ends with `unsupported_setting`; its other values are done.
- **warned**: it asks for what is not done. Each table handle tells all such keys in one warning; a boolean that says false, or
  another key that says Hudi's default, asks for nothing. Unknown and misspelled keys are told as well, with the nearest known one.
- **none**: without effect by design, logged as the event `options.without_effect` at debug level.

`hoodoo config show` tells it of the keys that are set.

| Key | Effect | Why |
|---|---|---|
"""
HEAD = """# Configuration

Made by `tools/option_docs.py` from the option tables; do not edit by hand. The keys are Hudi's; those that begin with
`hoodoo.` are ours alone. Layers, later wins: built-in default, `hudi-defaults.conf` (folder in `HUDI_CONF_DIR`), the
table's `hoodie.properties`, `--props` files, `--hoodie-conf k=v`, the Spark session's `spark.hoodie.*`, options in code.
`hoodoo config show` prints every effective value with the layer it came from.

No key is silent: [hudi-keys.md](hudi-keys.md) lists what becomes of each key of Hudi's. What would change rows, files or an
answer and is not done is refused by name; what else is not done, and each unknown key with the nearest known one, is told once
a table handle, by a warning (Python, Spark) or a remark (command line).
Defaults are Hudi's except: conflict retries 4 (Hudi 0), early conflict detection on, metadata table off, timeline zone UTC,
compression snappy (gzip), log blocks parquet unless a text orders rows (avro), compaction beside the writes off (on, for streams alone).
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
    shared = {
        option.key for option in (*LockSettings.options.values(), *WriteSettings.options.values())
    }
    return [option for option in provider_options() if option.key not in shared]


def page() -> str:
    """The whole page."""
    return (
        HEAD
        + table("Writing", WriteSettings.options.values())
        + table("Folders of times", TimeSettings.options.values())
        + table("Reading", ReadSettings.options.values())
        + table("Object stores", ObjectSettings.options.values())
        + table("Commit slots", SlotSettings.options.values())
        + table("Locks", LockSettings.options.values())
        + table("Lock providers", of_providers())
        + table("Cleaning", CleaningSettings.options.values())
        + table("Archiving", ArchivingSettings.options.values())
        + table("Compaction", CompactionSettings.options.values())
        + table("Log compaction", LogCompactionSettings.options.values())
        + table("Clustering", ClusteringSettings.options.values())
        + table("Partition TTL", TtlSettings.options.values())
        + table("Running services", WorkerSettings.options.values())
    )


def every_key() -> str:
    """The page of all keys of Hudi's."""
    declared = declared_keys(service_options())
    found = {one.key: effect_of(one.key, declared) for one in hudi_keys().values()}
    lines = [f"| `{key}` | {one.effect.value} | {one.why} |" for key, one in sorted(found.items())]
    return EVERY_HEAD + "\n".join(lines) + "\n"


def main() -> int:
    """Write or check."""
    pages = {TARGET: page(), EVERY_KEY: every_key()}
    if "--check" in sys.argv[1:]:
        return 0 if all(path.read_text() == text for path, text in pages.items()) else 1
    for path, text in pages.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
