"""The slices that a compaction plan names, proven, with what the storage says of their files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tableservices.executing import read_requested
from tableservices.planned_slices import bad_plan, planned_slice, refuse_repeated
from timeline.codecs.instant_avro import decode_compaction_plan
from timeline.context import TableContext
from timeline.errors import MissingFileError
from timeline.model.file_group import FileSlice
from timeline.model.instant import Instant
from timeline.model.paths import join
from timeline.model.plans import CompactionOperation, CompactionPlan
from timeline.ports.storage import Storage

__all__ = ["read_slices", "slices_of_plan"]


def read_slices(context: TableContext, planned: Instant) -> list[FileSlice]:
    """
    The slices of a pending plan. Outside: 1 get, those of ``slices_of_plan``.

    Raises:
        InstantNotFoundError: There is no such plan any more.
        CorruptTableError: It is damaged.
        Others: As ``slices_of_plan``.
    """
    data, path = read_requested(context, planned)
    return slices_of_plan(context.world.storage, decode_compaction_plan(data, path=path), path=path)


def slices_of_plan(storage: Storage, plan: CompactionPlan, *, path: str) -> list[FileSlice]:
    """
    The slices to merge, in the plan's order.

    Outside: 1 list per partition.

    Args:
        storage: Where the table lies.
        plan: Untrusted.
        path: Where the plan is, for errors.

    Raises:
        MissingFileError: A file of the plan is gone: cancel the plan.
        CorruptTableError, MalformedNameError, UnsupportedTableError: As ``planned_slice``;
            nothing was read.
    """
    slices = [_proven(storage, one, path) for one in plan.operations]
    refuse_repeated(slices, path=path)
    sizes = _Sizes(storage)
    return [_sized(one, sizes) for one in slices]


def _proven(storage: Storage, operation: CompactionOperation, path: str) -> FileSlice:
    found = planned_slice(
        storage,
        partition_path=operation.partition_path,
        file_id=operation.file_id,
        base_file=operation.data_file_path,
        log_files=operation.delta_file_paths,
        bootstrap_file=operation.bootstrap_file_path,
        path=path,
    )
    said = operation.base_instant_time
    base = found.base_file
    if not said or (base is not None and base.requested_time != said):
        raise bad_plan(path, f"another base instant than that of its base file: {said!a}")
    return replace(found, base_instant_time=said)


@dataclass(slots=True)
class _Sizes:
    """Bytes of the files of a partition, listed when first asked for."""

    storage: Storage
    listed: dict[str, Mapping[str, int]] = field(default_factory=dict)

    def of(self, partition_path: str, name: str) -> int:
        if partition_path not in self.listed:
            self.listed[partition_path] = {
                entry.name: entry.size_bytes
                for entry in self.storage.list(partition_path)
                if not entry.is_folder
            }
        size = self.listed[partition_path].get(name)
        if size is None:
            missing = join(partition_path, name)
            raise MissingFileError(
                f"a file of a pending plan is gone; cancel the plan: {missing}", path=missing
            )
        return size


def _sized(one: FileSlice, sizes: _Sizes) -> FileSlice:
    partition_path, base = one.file_group.partition_path, one.base_file
    return replace(
        one,
        base_file=base and replace(base, size_bytes=sizes.of(partition_path, base.name)),
        log_files=tuple(
            replace(log, size_bytes=sizes.of(partition_path, log.name)) for log in one.log_files
        ),
    )
