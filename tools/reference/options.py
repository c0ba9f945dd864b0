"""The pages of options and of Hudi's keys, from the option tables."""

from __future__ import annotations

from collections.abc import Iterable

from filegroups.settings.known_keys import effect_of, hudi_keys
from filegroups.settings.metadata_settings import MetadataTableSettings
from filegroups.settings.read_settings import ReadSettings
from filegroups.settings.settings import WriteSettings
from filegroups.settings.time_settings import TimeSettings
from hoodoo.configuration import declared_keys
from hoodoo.services import service_options
from hoodoo.streamer.settings import StreamerSettings
from hoodoo.sync.settings import SyncSettings
from lockproviders.registry import SlotSettings, provider_options
from lockproviders.settings import LockSettings
from tableservices.archiving.plan import ArchivingSettings
from tableservices.cleaning.plan import CleaningSettings
from tableservices.clustering.settings import ClusteringSettings
from tableservices.compaction.plan import CompactionSettings
from tableservices.logcompaction.execute import LogCompactionSettings
from tableservices.metadata_table.plan import MetadataServiceSettings
from tableservices.ttl.execute import TtlSettings
from tableservices.worker import WorkerSettings
from timeline.properties.options import Option, OptionKind
from timeline.storage.object_client import ObjectSettings

EVERY_HEAD = """# Keys of Hudi

Made by `python -m tools.reference` from the code; do not edit by hand.

hoodoo reads the keys of Hudi 1.2, in any case and by their older names. This page lists the effect of each:

| Effect | Meaning |
|---|---|
| **done** | hoodoo does what the key asks. [Options](options.md) describes it. |
| **refused** | A write or read with this key is refused (`unsupported_setting`), because it would change rows, files or an answer. Values that change nothing are accepted. |
| **warned** | hoodoo does not do what the key asks. Each opened table gives one warning with all such keys. `false`, and the default of Hudi, give none. |
| **none** | The key has no effect by design. hoodoo logs the event `options.without_effect` at debug level. |

A misspelled or unknown key is warned about too, with the most similar known key. `hoodoo config show` prints the effect of each key
that you set.

| Key | Effect | Reason |
|---|---|---|
"""
HEAD = """# Options

Made by `python -m tools.reference` from the code; do not edit by hand.

The keys are Hudi's. Keys that begin with `hoodoo.` are additions. [Keys of Hudi](hudi-keys.md) lists the effect of every other key
of Hudi. No key is silent: hoodoo does it, refuses it, warns about it, or says why it needs no effect.

A later layer overrides an earlier one:

1. The built-in default, as below.
2. `hudi-defaults.conf` in the folder of the variable `HUDI_CONF_DIR`.
3. The table's `hoodie.properties`.
4. Files of `--props`.
5. `--hoodie-conf KEY=VALUE`.
6. `spark.hoodie.*` of the Spark session.
7. Options in code.

`hoodoo config show` prints each effective value with its layer. `hoodoo config check` checks all of them.

The defaults are Hudi's, with these exceptions:

| Option | hoodoo | Hudi |
|---|---|---|
| Retries of a write after a conflict | 4 | 0 |
| Early conflict detection | on | off |
| Metadata table | off | on |
| Zone of instant times | UTC | the machine's |
| Compression of base files | snappy | gzip |
| Log blocks | Parquet, but Avro if an ordering field is a text | Avro |

"""


UNITS = {OptionKind.MS: " ms", OptionKind.BYTES: " bytes"}


def table(title: str, options: Iterable[Option]) -> str:
    """One section."""
    lines = [f"\n## {title}\n", "| Key | Default | Meaning |", "|---|---|---|"]
    for option in sorted({one.key: one for one in options}.values(), key=lambda one: one.key):
        also = f" (also `{'`, `'.join(option.aliases)}`)" if option.aliases else ""
        choices = (
            f" One of {', '.join(f'`{one}`' for one in option.choices)}." if option.choices else ""
        )
        default = f"`{option.default}`{UNITS.get(option.kind, '')}" if option.default else "none"
        lines.append(f"| `{option.key}`{also} | {default} | {option.doc}{choices} |")
    return "\n".join(lines) + "\n"


def of_providers() -> list[Option]:
    """Options of single providers, without those that all providers share."""
    shared = {
        option.key for option in (*LockSettings.options.values(), *WriteSettings.options.values())
    }
    return [option for option in provider_options() if option.key not in shared]


def sections() -> dict[str, Iterable[Option]]:
    """The sections of the page, in order."""
    return {
        "Writing": WriteSettings.options.values(),
        "Folders of times": TimeSettings.options.values(),
        "Reading": ReadSettings.options.values(),
        "Metadata table": MetadataTableSettings.options.values(),
        "Object stores": ObjectSettings.options.values(),
        "Commit slots": SlotSettings.options.values(),
        "Locks": LockSettings.options.values(),
        "Lock providers": of_providers(),
        "Cleaning": CleaningSettings.options.values(),
        "Archiving": ArchivingSettings.options.values(),
        "Compaction": CompactionSettings.options.values(),
        "Log compaction": LogCompactionSettings.options.values(),
        "Services of the metadata table": MetadataServiceSettings.options.values(),
        "Clustering": ClusteringSettings.options.values(),
        "Partition TTL": TtlSettings.options.values(),
        "Streamer": StreamerSettings.options.values(),
        "Catalog sync": SyncSettings.options.values(),
        "Running services": WorkerSettings.options.values(),
    }


def page() -> str:
    """The whole page."""
    contents = "\n".join(f"- [{title}](#{title.lower().replace(' ', '-')})" for title in sections())
    tables = "".join(table(title, options) for title, options in sections().items())
    return HEAD + contents + "\n" + tables


def sentence(reason: str) -> str:
    """A reason as a sentence of its own; empty if there is none."""
    first = reason[:1] if reason.startswith("hoodoo") else reason[:1].upper()
    return f"{first}{reason[1:]}." if reason else ""


def every_key() -> str:
    """The page of all keys of Hudi."""
    declared = declared_keys(service_options())
    found = {one.key: effect_of(one.key, declared) for one in hudi_keys().values()}
    lines = [
        f"| `{key}` | {one.effect.value} | {sentence(one.why)} |"
        for key, one in sorted(found.items())
    ]
    return EVERY_HEAD + "\n".join(lines) + "\n"
