"""The tree of errors is a contract: callers branch on classes, reactions and kinds."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from timeline import errors
from timeline.errors import HoodooError, InvalidInputError, Reaction, counted, reason_of

# class: (parents, reaction, kind). Append only: a kind, once released, keeps its meaning.
TREE = {
    "ConflictError": ("HoodooError", Reaction.REDO, "conflict"),
    "WriteConflictError": ("ConflictError", Reaction.REDO, "write_conflict"),
    "ClaimConflictError": ("ConflictError", Reaction.REDO, "claim_conflict"),
    "ServiceConflictError": ("ConflictError", Reaction.REDO, "service_conflict"),
    "SchemaConflictError": ("ConflictError", Reaction.REDO, "schema_conflict"),
    "TableChangedError": (
        "TableConfigConflictError",
        Reaction.REOPEN,
        "table_config_conflict",
    ),
    "TableConfigConflictError": ("ConflictError", Reaction.REDO, "table_config_conflict"),
    "MetadataTableOnError": (
        "TableConfigConflictError",
        Reaction.FIX_SETUP,
        "metadata_table_on",
    ),
    "DuplicateKeyError": ("ConflictError", Reaction.REDO, "duplicate_key"),
    "BudgetSpentError": ("ConflictError", Reaction.REDO, "budget_spent"),
    "SnapshotExpiredError": ("HoodooError", Reaction.REDO, "snapshot_expired"),
    "UnavailableError": ("HoodooError", Reaction.WAIT, "unavailable"),
    "StorageUnavailableError": ("UnavailableError", Reaction.WAIT, "storage_unavailable"),
    "LockTimeoutError": ("UnavailableError", Reaction.WAIT, "lock_timeout"),
    "OutcomeUnknownError": ("HoodooError", Reaction.ASK, "outcome_unknown"),
    "FencedError": ("HoodooError", Reaction.STOP, "fenced"),
    "LeaseLostError": ("FencedError", Reaction.STOP, "lease_lost"),
    "HeartbeatExpiredError": ("FencedError", Reaction.STOP, "heartbeat_expired"),
    "RolledBackError": ("FencedError", Reaction.STOP, "rolled_back"),
    "TableReplacedError": ("FencedError", Reaction.STOP, "table_replaced"),
    "InvalidInputError": ("HoodooError ValueError", Reaction.FIX_CALL, "invalid_input"),
    "SettingError": ("InvalidInputError", Reaction.FIX_CALL, "setting"),
    "UnknownProviderError": ("InvalidInputError", Reaction.FIX_CALL, "unknown_provider"),
    "MissingExtraError": ("UnsafeSetupError ImportError", Reaction.FIX_SETUP, "missing_extra"),
    "NotFoundError": ("HoodooError LookupError", Reaction.FIX_CALL, "not_found"),
    "TableNotFoundError": ("NotFoundError", Reaction.FIX_CALL, "table_not_found"),
    "InstantNotFoundError": ("NotFoundError", Reaction.FIX_CALL, "instant_not_found"),
    "UnsafeSetupError": ("HoodooError", Reaction.FIX_SETUP, "unsafe_setup"),
    "WriterDisagreementError": ("UnsafeSetupError", Reaction.FIX_SETUP, "writer_disagreement"),
    "StorageCapabilityError": ("UnsafeSetupError", Reaction.FIX_SETUP, "storage_capability"),
    "ClockRefusedError": ("UnsafeSetupError", Reaction.FIX_SETUP, "clock_refused"),
    "UnsupportedTableError": ("HoodooError", Reaction.FIX_SETUP, "unsupported_table"),
    "CorruptTableError": ("HoodooError", Reaction.FIX_TABLE, "corrupt_table"),
    "ChecksumError": ("CorruptTableError", Reaction.FIX_TABLE, "checksum"),
    "MalformedNameError": ("CorruptTableError", Reaction.FIX_TABLE, "malformed_name"),
    "MissingFileError": ("CorruptTableError", Reaction.FIX_TABLE, "missing_file"),
    "InternalError": ("HoodooError", Reaction.REPORT, "internal"),
    "IllegalTransitionError": ("InternalError", Reaction.REPORT, "illegal_transition"),
    "InvariantError": ("InternalError", Reaction.REPORT, "invariant"),
}


def classes() -> dict[str, type[HoodooError]]:
    """Return every error class of the module except the root."""
    found = inspect.getmembers(errors, inspect.isclass)
    return {n: c for n, c in found if issubclass(c, HoodooError) and c is not HoodooError}


def test_the_tree_is_the_promised_one() -> None:
    actual = {
        name: (" ".join(base.__name__ for base in c.__bases__), c.reaction, c.default_kind)
        for name, c in classes().items()
    }
    assert actual == TREE


def test_every_class_is_exported() -> None:
    assert sorted([*TREE, "HoodooError", "Reaction"]) == sorted(errors.__all__)


def test_reactions_have_stable_names() -> None:
    assert [reaction.value for reaction in Reaction] == [
        "redo",
        "reopen",
        "wait",
        "ask",
        "stop",
        "fix_call",
        "fix_setup",
        "fix_table",
        "report",
    ]


@pytest.mark.parametrize("name", TREE)
def test_an_error_crosses_processes_whole(name: str) -> None:
    error = classes()[name](
        "the write was refused: 2026", kind="special", path="a/b", rows=3, report={"who": ["x"]}
    )
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert copy.as_document() == error.as_document()
    assert copy.message == "the write was refused: 2026"


def test_the_document_holds_kind_reaction_message_and_fields() -> None:
    error = errors.LockTimeoutError("the lock is held: 60 s", holder="host-1")
    assert error.as_document() == {
        "kind": "lock_timeout",
        "reaction": "wait",
        "message": "the lock is held: 60 s",
        "holder": "host-1",
    }


@pytest.mark.parametrize(("number", "text"), [(0, "0 files"), (1, "1 file"), (2, "2 files")])
def test_a_number_has_its_noun_in_the_plural_unless_it_is_one(number: int, text: str) -> None:
    assert counted(number, "file") == text


def test_the_reason_of_an_unexpected_error_names_its_line() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        _ = 1 // len(())
    assert re.fullmatch(
        rf"ZeroDivisionError: .* \({re.escape(__name__)}, line \d+\)", reason_of(caught.value)
    )
    ours = InvalidInputError("no such column", kind="unknown_column")
    assert reason_of(ours) == str(ours)
