"""
Read what a clean on the timeline did or plans to do.

Another engine's clean has no slot, so its files are the only source (CLN-3, RDL-2).
"""

from __future__ import annotations

from timeline.codecs.instant_avro import decode_clean, decode_clean_plan
from timeline.context import TableContext
from timeline.model.file_names import instant_file_name, pending_file_names
from timeline.model.instant import Instant
from timeline.model.plans import CleanerPlan, CleanMetadata
from timeline.ports.storage import ObjectMissingError

__all__ = ["read_clean"]


def read_clean(context: TableContext, clean: Instant) -> CleanMetadata | CleanerPlan | None:
    """
    Return the metadata of a clean, or its plan while pending; None if missing. Outside: 1 get.

    Raises:
        CorruptTableError: The file is damaged.
    """
    name = instant_file_name(clean)
    if not clean.completed:
        name = pending_file_names(clean.action, clean.requested_time)[-1]
    path = context.instant_path(name)
    try:
        data = context.world.storage.read(path)
    except ObjectMissingError:  # archived or rolled back meanwhile
        return None
    if clean.completed:
        return decode_clean(data, path=path)
    return decode_clean_plan(data, path=path)
