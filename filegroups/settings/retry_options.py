"""
Options of retries: how often, how long, at what cost, and when a retry keeps the commit lock.

Part of the table in ``filegroups.settings.option_table``, with the functions that read them. A
preset sets options that the caller left out, and contradicting options are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from timeline.properties.options import DEFAULT_LAYER, Option, OptionKind
from timeline.properties.setting_enums import CommitLockMode, ForeignWriters
from timeline.rules.retry import RETRY_PRESETS, RetryPolicy, RetryPreset

if TYPE_CHECKING:
    from filegroups.settings.settings import WriteSettings

__all__ = ["RETRY_OPTIONS", "contradictions_of_retries", "fill_from_preset"]

# By the field of WriteSettings that the option sets.
RETRY_OPTIONS: Final[dict[str, Option]] = {
    "conflict_retries": Option(
        key="hoodie.write.num.retries.on.conflict.failures",
        default="4",
        kind=OptionKind.INT,
        doc="How often a refused write is done again; ours is 4 (Hudi: 0).",
    ),
    "commit_attempts_max": Option(
        key="hoodie.write.commit.retry.max.attempts",
        default="16",
        kind=OptionKind.INT,
        doc="Attempts of one publication.",
    ),
    "commit_retry_base_ms": Option(
        key="hoodie.write.commit.retry.base.ms",
        default="50",
        kind=OptionKind.MS,
        doc="First pause between attempts.",
    ),
    "commit_retry_cap_ms": Option(
        key="hoodie.write.commit.retry.cap.ms",
        default="10000",
        kind=OptionKind.MS,
        doc="Longest pause between attempts.",
    ),
    "commit_retry_total_ms": Option(
        key="hoodie.write.commit.retry.total.timeout.ms",
        default="1800000",
        kind=OptionKind.MS,
        doc="Time after which a write is not tried again; 0 for no bound.",
    ),
    "retry_policy": Option(
        key="hoodoo.retry.policy",
        default=RetryPolicy.EXPONENTIAL_JITTER.value,
        kind=OptionKind.ENUM,
        doc="How the pauses between attempts grow.",
        choices=tuple(policy.value for policy in RetryPolicy),
    ),
    "retry_preset": Option(
        key="hoodoo.retry.preset",
        default=None,
        kind=OptionKind.ENUM,
        doc="Retries, pauses and time for small batches that may not wait, or for long runs that "
        "must end well; what is said beside it counts.",
        choices=tuple(preset.value for preset in RetryPreset),
    ),
    "retry_wasted_bytes_max": Option(
        key="hoodoo.retry.wasted.bytes.max",
        default="0",
        kind=OptionKind.BYTES,
        doc="Bytes that refused attempts of one write may have written in vain; 0 for no bound.",
    ),
    "retry_queue_after": Option(
        key="hoodoo.retry.queue.after",
        default="0",
        kind=OptionKind.INT,
        doc="After so many conflicts a write holds the table's lock while it is done again, however "
        "long that lasts, so that it cannot lose once more; others wait. 0: never.",
    ),
    "retry_queue_short_ms": Option(
        key="hoodoo.retry.queue.short.ms",
        default="500",
        kind=OptionKind.MS,
        doc="A refused write whose last attempt took no longer holds the table's lock while it is "
        "done again, for this long at most (twice to four times that after further conflicts, far "
        "away ten looks at the store more, four times at most); not "
        "where writers publish without it, or other engines write. 0: never.",
    ),
}


def fill_from_preset(values: dict[str, Any], origins: dict[str, str]) -> None:
    """
    Set the fields that the caller left out to the values of the preset, in place.

    Args:
        values: Option values by field, as read.
        origins: The layer of each given field; gains those of the preset.
    """
    name = values.get("retry_preset")
    if name is None:
        return
    for field, value in RETRY_PRESETS[RetryPreset(name)].items():
        if field not in origins:
            values[field] = value
            origins[field] = f"{RETRY_OPTIONS['retry_preset'].key}={name}"


def contradictions_of_retries(settings: WriteSettings) -> tuple[str, str, str] | None:
    """Return what is wrong with the retry options: field, message, suggestion; None if nothing."""
    if settings.commit_retry_base_ms > settings.commit_retry_cap_ms:
        return (
            "commit_retry_base_ms",
            "the first pause between attempts is above the longest one",
            f"use at most {settings.commit_retry_cap_ms}",
        )
    for field in ("retry_queue_after", "retry_queue_short_ms"):
        asked = settings.origin(field) != DEFAULT_LAYER and getattr(settings, field)
        if asked and settings.publish_lock is not CommitLockMode.LOCK:
            return (
                field,
                "writers that publish without the lock do not wait for one that holds it",
                "use hoodoo.publish.lock=lock on all writers, or leave it out",
            )
        if asked and settings.foreign_writers is ForeignWriters.EXPECTED:
            return (
                field,
                "another engine's writers give up when the lock is held as long as a write lasts",
                "leave it out",
            )
    return None
