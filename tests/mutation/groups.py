"""The modules under mutation, grouped by the damage that a survivor there would do."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
RULES = ("timeline/rules", "filegroups/merge", "filegroups/keys")
PUBLISH = "timeline/commit/commit.py"
#: Modules that look up a batch, compare it and, below the truncation point, remember it.
BATCHES = ("filegroups/writing/idempotency.py", "tableservices/archiving/batch_ids.py")
CONCURRENCY = (
    *("timeline/rules/action_matrix.py", "timeline/rules/conflicts.py"),
    *("timeline/model/file_names.py", "timeline/model/file_slice.py"),
    *("timeline/model/instant.py", "timeline/model/instant_time.py"),
    *("timeline/rules/isolation.py", "timeline/rules/retry.py"),
    "timeline/heartbeat.py",
    *("hoodoo/history_checker/anomalies.py", "hoodoo/history_checker/history.py"),
)


def groups() -> dict[str, list[str]]:
    """
    Group -> paths.

    The steps are the parts of a commit without its own loop. A rule that no other group names is one
    about merging and formats.
    """
    rules = [
        file.relative_to(ROOT).as_posix()
        for folder in RULES
        for file in sorted((ROOT / folder).glob("*.py"))
    ]
    steps = [f.relative_to(ROOT).as_posix() for f in sorted((ROOT / PUBLISH).parent.glob("*.py"))]
    return {
        "publish": [PUBLISH],
        "steps": [s for s in steps if s != PUBLISH and not s.endswith("__init__.py")],
        "batches": [*BATCHES],
        "slots": ["timeline/commit_log.py"],
        "concurrency": sorted(CONCURRENCY),
        "merging": [r for r in rules if r not in CONCURRENCY and not r.endswith("__init__.py")],
    }
