"""Exit codes are a promise: every error of the tree has one, and which."""

from __future__ import annotations

import pytest

from hoodoo.cli.invocation import exit_code
from timeline import errors
from timeline.errors import HoodooError, Reaction

EXPECTED = {
    "BudgetSpentError": 3,
    "ClaimConflictError": 3,
    "ConflictError": 3,
    "DuplicateKeyError": 3,
    "SchemaConflictError": 3,
    "ServiceConflictError": 3,
    "SnapshotExpiredError": 3,
    "TableConfigConflictError": 3,
    "WriteConflictError": 3,
    "LockTimeoutError": 4,
    "OutcomeUnknownError": 6,
}


def tree() -> list[type[HoodooError]]:
    found = [getattr(errors, name) for name in errors.__all__]
    return [kind for kind in found if isinstance(kind, type) and kind is not Reaction]


@pytest.mark.parametrize("kind", tree(), ids=lambda kind: kind.__name__)
def test_every_error_has_its_exit_code(kind: type[HoodooError]) -> None:
    assert exit_code(kind("message")) == EXPECTED.get(kind.__name__, 1)
