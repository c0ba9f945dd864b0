"""
The file slices that a plan names, proven before a single one is opened (SEC1, SEC2).

A plan is a file of the table that anybody may have written. Every name in it must be that of a
data file of its file group, and every address must lie in its partition: bare, below this
table's base, or where a table lay that was moved since (Java's plans carry whole addresses).
Nothing is asked of the storage for that, and nothing is read or deleted before.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from timeline.errors import CorruptTableError, UnsupportedTableError
from timeline.model.claim import FileGroupId
from timeline.model.file_group import BaseFile, FileSlice, LogFile
from timeline.model.filenames import parse_base_file_name, parse_log_file_name
from timeline.model.paths import check_partition_path, join
from timeline.ports.storage import Storage

__all__ = ["bad_plan", "planned_slice", "refuse_repeated"]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def planned_slice(
    storage: Storage,
    *,
    partition_path: str | None,
    file_id: str | None,
    base_file: str | None,
    log_files: Sequence[str],
    bootstrap_file: str | None,
    path: str,
) -> FileSlice:
    """
    A slice of a plan; the sizes of its files are not known yet and 0.

    Args:
        storage: Where the table lies, for its address.
        partition_path: As the plan says, like all that follows.
        file_id: Of the file group.
        base_file: Name or address; none for a slice of logs alone.
        log_files: Names or addresses.
        bootstrap_file: Of tables that Hudi bootstrapped.
        path: Where the plan is, for errors.

    Raises:
        CorruptTableError: It names something that is no data file of its file group.
        MalformedNameError: The partition path leaves the table.
        UnsupportedTableError: It reads bootstrapped files.
    """
    if bootstrap_file:
        raise UnsupportedTableError(
            "the plan reads files of a bootstrapped table, which this release does not; let "
            f"Java Hudi carry it out: {path}",
            kind="bootstrap",
            path=path,
        )
    group = FileGroupId(check_partition_path(partition_path or ""), file_id or "")
    base = None
    if base_file:
        name = _file_name(storage, group.partition_path, base_file, path)
        parsed = parse_base_file_name(name)
        if parsed is None or parsed.file_id != group.file_id:
            raise bad_plan(path, f"not a base file of {group}: {base_file[:300]!a}")
        base = BaseFile(
            file_group=group, name=name, requested_time=parsed.requested_time, size_bytes=0
        )
    logs = tuple(_log(storage, group, address, path) for address in log_files)
    if base is None and not logs:
        raise bad_plan(path, f"a slice without files: {group}")
    first = base.requested_time if base else min(log.instant_time for log in logs)
    ordered = tuple(sorted(logs, key=lambda log: log.order))
    return FileSlice(file_group=group, base_instant_time=first, base_file=base, log_files=ordered)


def refuse_repeated(slices: Sequence[FileSlice], *, path: str) -> None:
    """
    Pass when a plan names no file group twice.

    Raises:
        CorruptTableError: It does.
    """
    seen: set[FileGroupId] = set()
    for one in slices:
        if one.file_group in seen:
            raise bad_plan(path, f"it names file group {one.file_group} twice")
        seen.add(one.file_group)


def bad_plan(path: str, why: str) -> CorruptTableError:
    """The error of a plan that must not be carried out."""
    return CorruptTableError(
        f"a plan is damaged or hostile; nothing was read or deleted, cancel it and plan anew: "
        f"{path}: {why}",
        kind="bad_plan",
        path=path,
    )


def _log(storage: Storage, group: FileGroupId, address: str, path: str) -> LogFile:
    name = _file_name(storage, group.partition_path, address, path)
    parsed = parse_log_file_name(name)
    if parsed is None or parsed.is_cdc or parsed.file_id != group.file_id:
        raise bad_plan(path, f"not a log file of {group}: {address[:300]!a}")
    return LogFile(
        file_group=group,
        name=name,
        instant_time=parsed.instant_time,
        log_version=parsed.log_version,
        write_token=parsed.write_token,
        size_bytes=0,
    )


def _file_name(storage: Storage, partition_path: str, address: str, path: str) -> str:
    """The last part of an address; one below this table's base must be the very place."""
    folder, _, name = address.rpartition("/")
    if not folder and "/" not in address:
        return name
    if not name or "/../" in address or "/./" in address:
        raise bad_plan(path, f"an address that leaves its folder: {address[:300]!a}")
    plain = _plain(address)
    expected = join(partition_path, name)
    base = _plain(storage.base_uri).rstrip("/") + "/"
    inside = plain.startswith(base)
    if (inside and plain != base + expected) or not plain.endswith("/" + expected):
        raise bad_plan(
            path, f"an address outside its partition {partition_path!a}: {address[:300]!a}"
        )
    return name


def _plain(address: str) -> str:
    """An address without its scheme and with one leading slash."""
    return "/" + _SCHEME.sub("", address, count=1).lstrip("/")
