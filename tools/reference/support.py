"""The page of what is supported, from the tables and the refusals of the code."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from filegroups.keys.generators import KeyGenerator
from filegroups.settings.settings import WriteSettings
from filegroups.supported import refuse_unreadable, refuse_unwritable
from hoodoo.services import _SERVICES, services_of
from lockproviders.registry import registry_for
from timeline.errors import HoodooError
from timeline.model.commit_metadata import ConcurrencyMode, MergeMode, TableType, WriteOperation
from timeline.model.table_config import LAYOUT_OF_VERSION, TableConfig, table_checksum
from timeline.properties.setting_enums import IndexType
from timeline.storage.object_address import OBJECT_SCHEMES

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
STORES = {"s3": "Amazon S3 and compatible stores", "gs": "Google Cloud Storage", "az": "Azure"}
HEAD = """# What is supported

Made by `python -m tools.reference` from the tables and checks of the code; do not edit by hand.

hoodoo refuses other tables by name. [Keys of Hudi](hudi-keys.md) has the effect
of each setting.

- [Software](#software)
- [Tables](#tables)
- [Writes](#writes)
- [Table services](#table-services)
- [Storage](#storage)
- [Locks](#locks)
"""
#: What is asked of the checks: a name for people, and the properties of such a table.
FEATURES: tuple[tuple[str, dict[str, str]], ...] = (
    ("Base files in Parquet", {}),
    ("Base files in ORC", {"hoodie.table.base.file.format": "ORC"}),
    ("Base files in HFile", {"hoodie.table.base.file.format": "HFILE"}),
    ("Bootstrapped table", {"hoodie.bootstrap.base.path": "/source"}),
    ("Timeline in another folder", {"hoodie.timeline.path": "elsewhere"}),
    ("Metadata table", {"hoodie.table.metadata.partitions": "files"}),
    ("Expression index", {"hoodie.table.metadata.partitions": "files,expr_index_x"}),
    (
        "Partitions as dates with slashes",
        {"hoodie.datasource.write.slash.separated.date.partitioning": "true"},
    ),
    ("Change data capture", {"hoodie.table.cdc.enabled": "true"}),
    ("No meta columns in the files", {"hoodie.populate.meta.fields": "false"}),
)


def config(version: int = 9, **properties: str) -> TableConfig:
    """Return the configuration of a table with these properties."""
    mapping = {
        "hoodie.table.name": "t",
        "hoodie.table.version": str(version),
        "hoodie.timeline.layout.version": str(LAYOUT_OF_VERSION.get(version, 2)),
        "hoodie.table.type": "COPY_ON_WRITE",
        "hoodie.table.checksum": table_checksum("t", ""),
        "hoodie.table.recordkey.fields": "id",
        **properties,
    }
    return TableConfig.from_properties(mapping, path="hoodie.properties")


def answer(check: Callable[[], object]) -> str:
    """Return whether a check passes, or the kind of its error."""
    try:
        check()
    except HoodooError as error:
        return f"refused (`{error.kind}`)"
    return "yes"


def may(properties: Mapping[str, str], version: int = 9) -> tuple[str, str]:
    """Return whether such a table can be read, and whether it can be written."""
    read = answer(lambda: refuse_unreadable(config(version, **properties)))
    if read != "yes":
        return read, read
    table = config(version, **properties)
    return read, answer(lambda: refuse_unwritable(table))


def table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table."""
    lines = ["| " + " | ".join(row) + " |" for row in (heads, ("---",) * len(heads), *rows)]
    return "\n" + "\n".join(lines).replace("| --- ", "|---").replace("---|", "---|") + "\n"


def software() -> str:
    """Return the section of Python and its packages."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    prefix = "Programming Language :: Python :: 3."
    versions = [one.removeprefix(prefix[:-2]) for one in project["classifiers"] if prefix in one]
    spark = project["optional-dependencies"]["spark"][0]
    rows = [
        ("Python", f"`{project['requires-python']}`; tested: {', '.join(versions)}"),
        ("PySpark (extra `spark`)", f"`{spark}`, with Java 17 or 21"),
        ("System", "Linux and other POSIX systems"),
    ]
    rows += [(f"Package {one.partition('>')[0]}", f"`{one}`") for one in project["dependencies"]]
    return "\n## Software\n" + table(("What", "Version"), rows)


def tables() -> str:
    """Return the section of versions and features of tables."""
    rows = [(f"Table version {one}", *may({}, one)) for one in LAYOUT_OF_VERSION]
    other = answer(lambda: config(min(LAYOUT_OF_VERSION) - 1))
    rows.append(("Other table versions", other, other))
    rows += [(f"`{one.value}`", *may({"hoodie.table.type": one.value})) for one in TableType]
    rows += [(name, *may(properties)) for name, properties in FEATURES]
    rows += [
        (f"Key generator `{one.name}`", *may({"hoodie.table.keygenerator.type": one.name}))
        for one in KeyGenerator
    ]
    return "\n## Tables\n" + table(("Table", "Read", "Written"), rows)


def writes() -> str:
    """Return the section of operations, modes and indexes."""
    engines = WriteSettings.options["bucket_engine"].choices
    rows = [
        ("Operations", names([one.value for one in WriteOperation])),
        ("Merge modes", names([one.value for one in MergeMode])),
        ("Concurrency modes", names([one.value for one in ConcurrencyMode])),
        ("Indexes", names([one.value for one in IndexType])),
        ("Bucket engines", names(list(engines))),
    ]
    return "\n## Writes\n" + table(("What", "Values"), rows)


def names(values: list[str]) -> str:
    """Return values for a cell."""
    return ", ".join(f"`{one}`" for one in values)


def services() -> str:
    """Return the section of the table services: name, task, and the options that switch them on."""
    rows = []
    for entry, service in zip(_SERVICES, services_of({}), strict=True):
        task = (
            (type(service).__doc__ or "")
            .strip()
            .splitlines()[0]
            .rstrip(".")
            .removesuffix(" as a service")
        )
        keys = [entry.settings.options[one].key for one in entry.switches]
        rows.append((f"`{service.name}`", task.partition(";")[0], names(keys)))
    return "\n## Table services\n" + table(("Service", "Task", "Switched on by"), rows)


def storage() -> str:
    """Return the section of the stores."""
    rows = [("Local disk", "a path, `file:`")]
    for store, title in STORES.items():
        schemes = [f"{one}://" for one, kind in OBJECT_SCHEMES.items() if kind == store]
        rows.append((f"{title} (extra `objectstore`)", names(schemes)))
    return "\n## Storage\n" + table(("Store", "Address"), rows)


def locks() -> str:
    """Return the section of the lock providers."""
    rows = []
    for entry in registry_for({}).entries:
        can = entry.capabilities
        reach = (
            "hosts" if can.between_hosts else "processes" if can.between_processes else "threads"
        )
        java = names([one.rpartition(".")[2] for one in entry.jvm_class_names]) or "none"
        excludes = "yes" if can.excludes_java else "no"
        expires = "by time" if can.expires else "with the process"
        rows.append((f"`{entry.name}`", f"between {reach}", excludes, expires, java))
    heads = (
        "Provider",
        "Excludes",
        "Excludes Java writers",
        "A dead holder's lock ends",
        "Java class",
    )
    return "\n## Locks\n" + table(heads, rows)


def page() -> str:
    """Return the page."""
    return HEAD + software() + tables() + writes() + services() + storage() + locks()
