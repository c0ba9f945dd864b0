"""What a rollback or restore writes down, in Java Hudi's words: plan and result (fmt 3)."""

from __future__ import annotations

from collections.abc import Iterable

from timeline.model.paths import parent_folder
from timeline.model.plans import (
    InstantInfo,
    RollbackMetadata,
    RollbackPartitionMetadata,
    RollbackPlan,
    RollbackRequest,
)
from timeline.model.times import InstantTime
from timeline.ports.storage import Storage

__all__ = ["plan_document", "result_document"]


def plan_document(storage: Storage, target: InstantInfo, files: Iterable[str]) -> RollbackPlan:
    """
    The plan that deletes these files of ``target``, one request each.

    Args:
        storage: Says where they are for other engines.
        target: The instant that is undone.
        files: Relative to the table.
    """
    return RollbackPlan(
        instant_to_rollback=target,
        rollback_requests=tuple(
            RollbackRequest(
                partition_path=parent_folder(path),
                file_id=path.rpartition("/")[2].partition("_")[0].lstrip("."),
                latest_base_instant=target.requested_time,
                files_to_be_deleted=(_plain(storage.locate(path)),),
            )
            for path in files
        ),
    )


def result_document(
    storage: Storage, target: InstantInfo, files: Iterable[str], *, own_time: InstantTime
) -> RollbackMetadata:
    """The result after these files of ``target`` were deleted by the instant ``own_time``."""
    by_partition: dict[str, list[str]] = {}
    for path in files:
        by_partition.setdefault(parent_folder(path), []).append(_plain(storage.locate(path)))
    return RollbackMetadata(
        start_rollback_time=own_time,
        total_files_deleted=sum(map(len, by_partition.values())),
        commits_rollback=(target.requested_time,),
        partition_metadata={
            partition: RollbackPartitionMetadata(
                partition_path=partition, success_delete_files=tuple(addresses)
            )
            for partition, addresses in sorted(by_partition.items())
        },
        instants_rollback=(target,),
    )


def _plain(address: str) -> str:
    """Rollback plans name absolute paths without a local scheme (fmt 3)."""
    return (
        "/" + address.removeprefix("file:").lstrip("/") if address.startswith("file:") else address
    )
