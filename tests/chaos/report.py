"""The report of a chaos run: one JSON document, and the same for people as Markdown."""

from __future__ import annotations

import json
import platform
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.chaos.faults import Kind
from tests.chaos.journal import OpRecord
from tests.chaos.nemesis import Struck


def figures(operations: Mapping[str, Sequence[OpRecord]]) -> dict[str, Any]:
    """How many operations ended how, how long they took, and the longest time without a success."""
    every = [one for records in operations.values() for one in records]
    done = [one for one in every if one.answer == "ok" and one.answered is not None]
    took = np.array([one.answered - one.invoked for one in done if one.answered is not None])
    moments = np.sort(np.array([one.answered for one in done]))
    gaps = np.diff(moments)
    return {
        "ok": len(done),
        "failed": sum(one.answer == "fail" for one in every),
        "were_unknown": sum(one.was_unknown for one in every),
        "open": sum(one.answer is None for one in every),
        "failed_by_kind": dict(
            Counter(one.error or "?" for one in every if one.answer == "fail").most_common()
        ),
        "p50_ms": _ms(np.quantile(took, 0.5)) if len(took) else None,
        "p99_ms": _ms(np.quantile(took, 0.99)) if len(took) else None,
        "longest_ms": _ms(took.max()) if len(took) else None,
        "longest_stall_ms": _ms(gaps.max()) if len(gaps) else None,
        "by_writer": {
            name: sum(one.answer == "ok" for one in records) for name, records in operations.items()
        },
    }


def answers_of(operations: Mapping[str, Sequence[OpRecord]]) -> list[float]:
    """When operations succeeded, in seconds of the monotonic clock."""
    return [
        one.answered
        for records in operations.values()
        for one in records
        if one.answer == "ok" and one.answered is not None
    ]


def recovery(
    struck: Sequence[Struck], operations: Mapping[str, Sequence[OpRecord]]
) -> dict[str, dict[str, Any]]:
    """
    By kind, how long after a fault's end its writer had a success again.

    Of faults that strike all the writers' median. Faults overlap: a writer that another fault
    struck meanwhile waited for both.
    """
    moments = {
        name: np.sort([one.answered for one in records if one.answer == "ok" and one.answered])
        for name, records in operations.items()
    }
    waits: dict[Kind, list[float]] = defaultdict(list)
    for one in struck:
        names = [one.fault.target] if one.fault.target else list(moments)
        after = []
        for name in names:
            if name in moments:  # services and readers acknowledge nothing
                later = moments[name][moments[name] > one.healed]
                if len(later):
                    after.append(float(later[0]) - one.healed)
        if after:
            waits[one.fault.kind].append(float(np.median(after)))
    return {
        kind.value: {
            "times": len(found),
            "p50_ms": _ms(float(np.quantile(found, 0.5))),
            "longest_ms": _ms(max(found)),
        }
        for kind, found in sorted(waits.items(), key=lambda pair: pair[0].value)
    }


def machine() -> dict[str, Any]:
    """Where it ran."""
    import os

    return {
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_after": [round(one, 1) for one in os.getloadavg()],
    }


def save(document: Mapping[str, Any], path: Path) -> None:
    """Save as ``path`` (JSON), and as text with the ending ``.md``."""
    path.write_text(json.dumps(document, indent=1) + "\n")
    path.with_suffix(".md").write_text(_markdown(document))


def _markdown(document: Mapping[str, Any]) -> str:
    ops = document["operations"]
    lines = [
        f"# Chaos under {document['lock']}: {document['verdict']}",
        "",
        f"Again: `{document['again']}`",
        "",
        f"{document['seconds']} s of faults, seed {document['seed']}; crew: "
        + ", ".join(f"{count} {role}" for role, count in document["crew"].items())
        + f"; tables: {document['tables']}.",
        "",
        "| Pass line | wanted | found | |",
        "|---|---|---|---|",
        *(
            f"| {one['what']} | {one['wanted']} | {one['found']} | {one['verdict']} |"
            for one in document["pass_line"]
        ),
        "",
        "| Operations | |",
        "|---|---|",
        *(
            f"| {name.replace('_', ' ')} | {ops[name]} |"
            for name in (
                *("ok", "failed", "were_unknown", "open", "p50_ms", "p99_ms", "longest_ms"),
                "longest_stall_ms",
            )
        ),
        f"| by writer | {_counts(ops['by_writer'])} |",
        f"| failed because | {_counts(ops['failed_by_kind'])} |",
        "",
        "| Fault | times | recovery p50 (ms) | longest (ms) |",
        "|---|---|---|---|",
    ]
    for kind, times in document["faults"].items():
        again = document["recovery"].get(kind, {})
        cells = f"{again.get('p50_ms', '-')} | {again.get('longest_ms', '-')}"
        lines.append(f"| {kind} | {times} | {cells} |")
    left_out = [*document["impossible"], *document["lacking"]]
    lines += ["", f"Not possible here: {', '.join(left_out) or 'nothing'}.", ""]
    lines += [*_grown(document["grown"]), ""]
    lines += [f"Services: {_counts(document['services'])}.", ""]
    lines += [f"Readers: {_counts(document['readers'])}.", ""]
    lines += [f"Free lock after the end: {document['lock_free_ms']} ms.", ""]
    lines += [f"## Violations: {len(document['violations'])}", ""]
    lines += [f"- {one}" for one in document["violations"]]
    lines += ["", f"Machine: {document['machine']}"]
    return "\n".join(lines) + "\n"


def _grown(grown: Sequence[Mapping[str, Any]]) -> list[str]:
    """The most that each process which lived long held, in the halves of its life."""
    lines = [
        "| Process | watched (s) | files | threads | memory (MB) | |",
        "|---|---|---|---|---|---|",
    ]
    for one in grown:
        files, threads, memory = (one[what] for what in ("files", "threads", "rss_kb"))
        judged = "judged" if one["judged"] else "measured"
        lines.append(
            f"| {one['name']} | {one['seconds']} | {files[0]}, {files[1]} | "
            f"{threads[0]}, {threads[1]} | {memory[0] >> 10}, {memory[1] >> 10} | {judged} |"
        )
    return lines if grown else ["No process lived long enough to show growth."]


def _counts(counts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"


def _ms(seconds: Any) -> int:
    return round(float(seconds) * 1_000)
