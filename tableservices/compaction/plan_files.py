"""
The file slices that a plan names, checked before a single one is opened (SEC1, SEC2).

A plan is a file of the table, and anybody may have written it. Java's older plans name whole
paths, of the place where the table lay then; only the file's name is taken from them, and it
must belong to the operation's file group. So no plan can reach outside its partitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from timeline.errors import CorruptTableError, MissingFileError, UnsupportedTableError
from timeline.model.claim import FileGroupId
from timeline.model.file_group import BaseFile, FileSlice, LogFile
from timeline.model.filenames import parse_base_file_name, parse_log_file_name
from timeline.model.paths import check_partition_path, join
from timeline.model.plans import CompactionOperation, CompactionPlan
from timeline.ports.storage import Storage

__all__ = ["slices_of_plan"]


def slices_of_plan(storage: Storage, plan: CompactionPlan, *, path: str) -> list[FileSlice]:
    """
    The slices to merge, in the plan's order.

    Outside: 1 list per partition.

    Args:
        storage: Where the table lies.
        plan: Untrusted.
        path: Where the plan is, for errors.

    Raises:
        CorruptTableError: A name outside the grammar or of another file group, or two
            operations for one file group; nothing was read.
        MalformedNameError: A partition path that leaves the table.
        MissingFileError: A file of the plan is gone: cancel the plan.
        UnsupportedTableError: The plan reads bootstrapped files.
    """
    checked = [_Checked.of(one, path) for one in plan.operations]
    if len({one.group for one in checked}) != len(checked):
        raise _refused(path, "it names a file group twice")
    sizes = _Sizes(storage)
    return [one.slice(sizes) for one in checked]


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


@dataclass(frozen=True, slots=True)
class _Checked:
    """An operation whose every name follows the grammar."""

    group: FileGroupId
    base_instant_time: str
    base_name: str | None
    log_names: tuple[str, ...]

    @classmethod
    def of(cls, operation: CompactionOperation, path: str) -> _Checked:
        partition_path = check_partition_path(operation.partition_path or "")
        if operation.bootstrap_file_path:
            raise UnsupportedTableError(
                "the plan reads files of a bootstrapped table, which this release does not; let "
                f"Java Hudi carry it out: {path}",
                kind="bootstrap",
                path=path,
            )
        base_name = None
        if operation.data_file_path:
            base_name = _file_name(operation.data_file_path, partition_path, path)
            base = parse_base_file_name(base_name)
            fits = base is not None and base.file_id == operation.file_id
            if not fits or (base and base.requested_time != operation.base_instant_time):
                raise _refused(path, f"not a base file of its file group: {base_name!r}")
        names = []
        for delta in operation.delta_file_paths:
            name = _file_name(delta, partition_path, path)
            log = parse_log_file_name(name)
            if log is None or log.is_cdc or log.file_id != operation.file_id:
                raise _refused(path, f"not a log file of its file group: {name!r}")
            names.append(name)
        if not operation.file_id or not operation.base_instant_time:
            raise _refused(path, "an operation lacks its file id or base instant")
        return cls(
            FileGroupId(partition_path, operation.file_id),
            operation.base_instant_time,
            base_name,
            tuple(names),
        )

    def slice(self, sizes: _Sizes) -> FileSlice:
        """The slice with what the storage says of its files."""
        partition_path = self.group.partition_path
        base = None
        if self.base_name is not None:
            base = BaseFile(
                file_group=self.group,
                name=self.base_name,
                requested_time=self.base_instant_time,
                size_bytes=sizes.of(partition_path, self.base_name),
            )
        logs = []
        for name in self.log_names:
            parsed = parse_log_file_name(name)
            if parsed is not None:
                logs.append(
                    LogFile(
                        file_group=self.group,
                        name=name,
                        instant_time=parsed.instant_time,
                        log_version=parsed.log_version,
                        write_token=parsed.write_token,
                        size_bytes=sizes.of(partition_path, name),
                    )
                )
        return FileSlice(
            file_group=self.group,
            base_instant_time=self.base_instant_time,
            base_file=base,
            log_files=tuple(sorted(logs, key=lambda log: log.order)),
        )


def _file_name(text: str, partition_path: str, path: str) -> str:
    """The name of a file that a plan names, bare or by a whole path into the partition."""
    folder, _, name = text.rpartition("/")
    below = f"/{partition_path}" if partition_path else ""
    if folder and (not f"/{folder}".endswith(below) or ".." in folder.split("/")):
        raise _refused(path, f"a file outside the operation's partition: {text!r}")
    return name


def _refused(path: str, why: str) -> CorruptTableError:
    return CorruptTableError(
        f"a plan is not carried out, cancel it or restore the file: {why}: {path}",
        kind="bad_plan",
        path=path,
    )
