"""The state of a metadata table: its partitions, its lag, and what waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from filegroups.metadata_table.reading import open_metadata_table
from filegroups.supported import is_maintained
from filegroups.writing.metadata_update import file_ids_of
from tableservices.metadata_table.execute import held_reason
from tableservices.metadata_table.plan import delta_commits, newest_compaction
from timeline.context import TableContext
from timeline.errors import CorruptTableError, UnsupportedTableError
from timeline.model.file_names import METADATA_TABLE, join
from timeline.model.instant_time import InstantTime
from timeline.ports.ports import Storage
from timeline.properties.properties_file import load_config

#: Of each partition ``status`` opens the newest files of so many file groups.
_FILE_GROUPS_OPENED_MAX: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataPartitionStatus:
    """
    One partition of a metadata table.

    ``state`` is ``complete``, or ``being built``: writers maintain it, and readers do not use it.
    """

    name: str
    state: str
    file_groups: int
    base_files: int
    log_files: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataStatus:
    """
    The state of a metadata table.

    ``delta_commits`` are those since the last compaction, ``compacted`` its requested time.
    Three fields list instants that the timelines do not share. ``behind`` are completed on the table
    and missing in the metadata table. ``pending`` are completed in the metadata table and pending on
    the table. ``unknown`` are in the metadata table only.
    ``trusted`` is whether readers use it: the timelines agree, and its newest files can be opened.
    The records in the files are not read. ``remarks`` say what waits, and what to do.
    """

    partitions: tuple[MetadataPartitionStatus, ...]
    trusted: bool
    delta_commits: int = 0
    compacted: InstantTime | None = None
    behind: tuple[InstantTime, ...] = ()
    pending: tuple[InstantTime, ...] = ()
    unknown: tuple[InstantTime, ...] = ()
    remarks: tuple[str, ...] = ()

    def as_document(self) -> dict[str, Any]:
        """JSON-ready form."""
        return asdict(self)


def metadata_status(context: TableContext) -> MetadataStatus:
    """
    Return the state of the metadata table; without partitions if there is none.

    Outside: 1 get; 2 lists for each partition, and 1 open_input for each newest file of its first
    100 file groups; as ``open_metadata_table``.
    """
    storage, config = context.ports.storage, load_config(context.ports.storage)
    complete = set(config.complete_metadata_partitions)
    partitions = tuple(
        _partition(storage, name, is_complete=name in complete)
        for name in sorted(config.metadata_partitions)
    )
    remarks = [
        f"{one.name} is being built; if no process builds it, run 'hoodoo metadata "
        f"{'create' if is_maintained(one.name) else 'drop'} TABLE {one.name}'"
        for one in partitions
        if one.state != "complete"
    ]
    if not complete:
        return MetadataStatus(partitions=partitions, trusted=False, remarks=tuple(remarks))
    try:
        table = open_metadata_table(storage, config, context.snapshot(), ports=context.ports)
    except (CorruptTableError, UnsupportedTableError) as error:
        remarks.append(f"readers list folders: {error.message}")
        return MetadataStatus(partitions=partitions, trusted=False, remarks=tuple(remarks))
    if table is None:
        return MetadataStatus(partitions=partitions, trusted=False, remarks=tuple(remarks))
    lag, own = table.lag, table.own.active
    if not lag.is_trusted:
        remarks.append(
            "readers list folders, because the metadata table does not have exactly the instants of "
            "the table: run 'hoodoo metadata rebuild TABLE'"
        )
    damaged = [
        error for name in table.partitions for error in table.damage(name, _FILE_GROUPS_OPENED_MAX)
    ]
    remarks += dict.fromkeys(error.message for error in damaged)
    why = held_reason(config, table)
    if why is not None and lag.pending:  # above, a partition that is being built has its remark
        remarks.append(f"compaction and archiving wait: {why}")
    compaction = newest_compaction(own)
    return MetadataStatus(
        partitions=partitions,
        trusted=lag.is_trusted and not damaged,
        delta_commits=delta_commits(own),
        compacted=None if compaction is None else compaction.requested_time,
        behind=lag.behind,
        pending=lag.pending,
        unknown=lag.unknown,
        remarks=tuple(remarks),
    )


def _partition(storage: Storage, name: str, *, is_complete: bool) -> MetadataPartitionStatus:
    files = [one for one in storage.list(join(METADATA_TABLE, name)) if not one.is_folder]
    bases = [one for one in files if one.name.endswith(".hfile")]
    logs = [one for one in files if ".log." in one.name]
    return MetadataPartitionStatus(
        name=name,
        state="complete" if is_complete else "being built",
        file_groups=len(file_ids_of(one.name for one in files)),
        base_files=len(bases),
        log_files=len(logs),
        bytes=_bytes(bases) + _bytes(logs),
    )


def _bytes(files: Sequence[Any]) -> int:
    return sum(one.size_bytes for one in files)
