"""The modules under mutation, by what a survivor there would cost."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
RULES = "timeline/rules"
PUBLISHING = "timeline/publishing"
PUBLISH = f"{PUBLISHING}/publish.py"
BATCHES = ("timeline/writing/batches.py", "tableservices/archiving/remembering.py")
CONCURRENCY = (
    *("action_matrix", "anomalies", "conflicts", "dependency_cycles", "isolation", "liveness"),
    *("pacing", "retry", "slicing", "strategies", "succession", "transitions"),
)


def groups() -> dict[str, list[str]]:
    """Group -> paths. A rule that is named nowhere else is one about merging and formats."""
    named = {f"{RULES}/{name}.py" for name in CONCURRENCY}
    return {
        "publish": [PUBLISH],
        "publishing": [*_modules(PUBLISHING, besides={PUBLISH}), *BATCHES],
        "slots": ["timeline/slots.py"],
        "concurrency": sorted(named),
        "merging": _modules(RULES, besides=named),
    }


def _modules(folder: str, *, besides: set[str]) -> list[str]:
    here = [f.relative_to(ROOT).as_posix() for f in sorted((ROOT / folder).glob("*.py"))]
    return [path for path in here if path not in besides and not path.endswith("__init__.py")]
