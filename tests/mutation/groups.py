"""The modules under mutation, by what a survivor there would cost."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
RULES = "timeline/rules"
PUBLISH = "timeline/publishing/publish.py"
#: Where a batch that counts once is looked up, told apart and, behind the boundary, remembered.
BATCHES = ("timeline/writing/batches.py", "tableservices/archiving/remembering.py")
CONCURRENCY = (
    *("action_matrix", "anomalies", "conflicts", "dependency_cycles", "isolation", "liveness"),
    *("pacing", "retry", "slicing", "strategies", "succession", "transitions"),
)


def groups() -> dict[str, list[str]]:
    """
    Group -> paths.

    The steps are what a publication is made of besides its own loop. A rule that is named nowhere
    else is one about merging and formats.
    """
    named = {f"{RULES}/{name}.py" for name in CONCURRENCY}
    rules = [f.relative_to(ROOT).as_posix() for f in sorted((ROOT / RULES).glob("*.py"))]
    steps = [f.relative_to(ROOT).as_posix() for f in sorted((ROOT / PUBLISH).parent.glob("*.py"))]
    return {
        "publish": [PUBLISH],
        "steps": [s for s in steps if s != PUBLISH and not s.endswith("__init__.py")],
        "batches": [*BATCHES],
        "slots": ["timeline/slots.py"],
        "concurrency": sorted(named),
        "merging": [r for r in rules if r not in named and not r.endswith("__init__.py")],
    }
