"""After any operations in any order, a table reads like the dictionary of the model."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

from tests.stateful.machine import TableMachine

_NIGHTLY = bool(os.environ.get("HOODOO_NIGHTLY"))

TestTableIsADictionary = TableMachine.TestCase
TestTableIsADictionary.settings = settings(
    max_examples=1_000 if _NIGHTLY else 15,
    stateful_step_count=20 if _NIGHTLY else 12,
    # To find a smaller example takes longer than a short run may; a nightly run does it.
    phases=list(Phase) if _NIGHTLY else [Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
    deadline=None,
)
