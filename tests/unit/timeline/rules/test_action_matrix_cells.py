"""
The action matrix cell by cell, as ``hoodoo explain --matrix`` prints it: rule, outcome and reason.

This second copy shows a cell that moves to its neighbour's position. The tests of the table
services run the cases of the cells.
"""

from __future__ import annotations

import pytest

from timeline.rules.action_matrix import (
    ACTION_MATRIX,
    BY_STRATEGY,
    MatrixAction,
    MatrixOutcome,
    OtherProgress,
)

#: Letter -> rule, outcome, and how the reason begins.
LEGEND = {
    "a": ("C0", MatrixOutcome.COMMITS, "the one that commits"),
    "b": ("C0", MatrixOutcome.COMMITS, "they change different"),
    "c": ("C0", MatrixOutcome.AS_COMPLETED, "it decided in one"),
    "d": ("C8", MatrixOutcome.RETRIES, "planned after I began:"),
    "e": ("C0", MatrixOutcome.COMMITS, "it moves rows and"),
    "f": ("C0", MatrixOutcome.COMMITS, "unless the plan is"),
    "g": ("C0", MatrixOutcome.COMMITS, "a log that completes"),
    "h": ("C8", MatrixOutcome.NEVER, "a file group is"),
    "i": ("C0", MatrixOutcome.LEAVES_OUT, "it keeps the needed"),
    "j": ("C6", MatrixOutcome.ENDS_IT, "the abort slot comes"),
    "k": ("C0", MatrixOutcome.COMMITS, "the service decides in"),
    "l": ("C0", MatrixOutcome.REJECTED, "while its heartbeat is"),
    "m": ("C6", MatrixOutcome.ENDS_IT, "it removes everything after"),
    "n": ("C9", MatrixOutcome.RETRIES, "one key is new"),
    "o": ("C4", MatrixOutcome.RETRIES, "the other replaced the"),
    "p": ("C0", MatrixOutcome.COMMITS, "it keeps the files"),
    "q": ("C6", MatrixOutcome.RETRIES, "mine was rolled back,"),
    "r": ("C6", MatrixOutcome.RETRIES, "the files that mine"),
    "s": ("C1", MatrixOutcome.REBASES, "merged again on the"),
    "t": ("C1", MatrixOutcome.RETRIES, "a log conflicts, and"),
    "u": ("C2", MatrixOutcome.RETRIES, "my rows must be"),
    "v": ("C1", MatrixOutcome.RETRIES, "logs count in the"),
    "w": ("C5", MatrixOutcome.RETRIES, "rows that came into"),
    "x": ("C0", MatrixOutcome.COMMITS, "a plan contains the"),
    "y": ("C0", MatrixOutcome.COMMITS, "my result is in"),
    "z": ("C0", MatrixOutcome.YIELDS, "the restore removed the"),
    "A": ("C0", MatrixOutcome.YIELDS, "more than further logs"),
    "B": ("C0", MatrixOutcome.LEAVES_OUT, "its groups stay as"),
    "C": ("C0", MatrixOutcome.YIELDS, "a committed instant is"),
    "D": ("C0", MatrixOutcome.COMMITS, "the deletes are repeated,"),
    "E": ("C0", MatrixOutcome.REJECTED, "where files of that"),
    "F": ("C1", MatrixOutcome.RETRIES, "both opened one bucket"),
    "G": ("C0", MatrixOutcome.ENDS_IT, "a clustering that would"),
    "H": ("C0", MatrixOutcome.LEAVES_OUT, "a live writer announced"),
    "I": ("C18", MatrixOutcome.RETRIES, "a partition has one"),
    "J": ("C0", MatrixOutcome.COMMITS, "an insert that drops"),
    "K": ("C0", MatrixOutcome.COMMITS, "unless logs had deleted"),
}

#: Mine -> letters of theirs, in the order of ``MatrixAction``.
CELLS = {
    OtherProgress.PENDING: {
        MatrixAction.INSERT: "aaaa bbb ccccc",
        MatrixAction.UPDATE: "aaaa def ccccc",
        MatrixAction.APPEND: "aaaa gef ccccc",
        MatrixAction.OVERWRITE: "aaaa eef ccccc",
        MatrixAction.COMPACTION: "aaaa hhh ccccc",
        MatrixAction.LOG_COMPACTION: "aaaa hhh ccccc",
        MatrixAction.CLUSTERING: "aaaa hhh ccccc",
        MatrixAction.CLEAN: "iiii iii ccccc",
        MatrixAction.ROLLBACK: "jjjj kkk ccccc",
        MatrixAction.RESTORE: "llll mmm ccccc",
        MatrixAction.SAVEPOINT: "kkkk kkk ccccc",
        MatrixAction.ARCHIVE: "iiii iii ccccc",
    },
    OtherProgress.COMPLETED: {
        MatrixAction.INSERT: "nJJo bbb pqrkk",
        MatrixAction.UPDATE: "bsto stu pqrkk",
        MatrixAction.APPEND: "Ktvo geu pqrkk",
        MatrixAction.OVERWRITE: "wwww eew pqrkk",
        MatrixAction.COMPACTION: "bxxy hhh pkzkk",
        MatrixAction.LOG_COMPACTION: "bAxA hhh pkzkk",
        MatrixAction.CLUSTERING: "bBBB hhh pkzkk",
        MatrixAction.CLEAN: "kkkk kkk kkkik",
        MatrixAction.ROLLBACK: "CCCC kkk kDkkk",
        MatrixAction.RESTORE: "mmmm mmm Ekkkk",
        MatrixAction.SAVEPOINT: "kkkk kkk EkEkk",
        MatrixAction.ARCHIVE: "kkkk kkk kkkik",
    },
}

#: Strategy -> (mine, theirs, standing, letter) of the cells that differ.
BY_NAME = {
    "simple": [],
    "bucket": [
        (MatrixAction.INSERT, MatrixAction.INSERT, OtherProgress.COMPLETED, "F"),
    ],
    "prefer_writer": [
        (MatrixAction.UPDATE, MatrixAction.CLUSTERING, OtherProgress.PENDING, "G"),
        (MatrixAction.APPEND, MatrixAction.CLUSTERING, OtherProgress.PENDING, "G"),
        (MatrixAction.OVERWRITE, MatrixAction.CLUSTERING, OtherProgress.PENDING, "G"),
        (MatrixAction.CLUSTERING, MatrixAction.UPDATE, OtherProgress.PENDING, "H"),
        (MatrixAction.CLUSTERING, MatrixAction.APPEND, OtherProgress.PENDING, "H"),
    ],
    "partition": [
        (MatrixAction.INSERT, MatrixAction.INSERT, OtherProgress.COMPLETED, "I"),
        (MatrixAction.INSERT, MatrixAction.UPDATE, OtherProgress.COMPLETED, "I"),
        (MatrixAction.INSERT, MatrixAction.APPEND, OtherProgress.COMPLETED, "I"),
        (MatrixAction.UPDATE, MatrixAction.INSERT, OtherProgress.COMPLETED, "I"),
        (MatrixAction.UPDATE, MatrixAction.UPDATE, OtherProgress.COMPLETED, "I"),
        (MatrixAction.APPEND, MatrixAction.INSERT, OtherProgress.COMPLETED, "I"),
    ],
}


def as_tuple(cell: object, letter: str) -> tuple[str, MatrixOutcome, str]:
    begins = LEGEND[letter][2]
    return (cell.rule.value, cell.outcome, cell.why[: len(begins)])


@pytest.mark.parametrize("progress", OtherProgress)
@pytest.mark.parametrize("mine", MatrixAction)
def test_each_cell_has_its_rule_its_outcome_and_its_reason(
    mine: MatrixAction, progress: OtherProgress
) -> None:
    letters = CELLS[progress][mine].replace(" ", "")
    found = [
        as_tuple(ACTION_MATRIX[mine, theirs, progress], letter)
        for theirs, letter in zip(MatrixAction, letters, strict=True)
    ]
    assert found == [LEGEND[letter] for letter in letters]


@pytest.mark.parametrize("strategy", BY_NAME)
def test_a_strategy_differs_in_these_cells_and_no_other(strategy: str) -> None:
    table = BY_STRATEGY[strategy]
    assert list(table) == [
        (mine, theirs, progress) for mine, theirs, progress, _ in BY_NAME[strategy]
    ]
    for mine, theirs, progress, letter in BY_NAME[strategy]:
        assert as_tuple(table[mine, theirs, progress], letter) == LEGEND[letter]


def test_strategies_are_listed_in_this_order() -> None:
    assert list(BY_STRATEGY) == ["simple", "bucket", "prefer_writer", "partition"]


def test_words_of_the_printed_matrix_are_stable() -> None:
    assert [deed.value for deed in MatrixAction] == [
        "insert into new file groups",
        "base file of a file group",
        "log file of a file group",
        "overwrite or delete of partitions",
        "compaction",
        "log compaction",
        "clustering",
        "clean",
        "rollback",
        "restore",
        "savepoint",
        "archiving",
    ]
    assert [progress.value for progress in OtherProgress] == ["pending", "completed"]
    assert [outcome.value for outcome in MatrixOutcome] == [
        "both commit",
        "mine is retried for these file groups",
        "mine is retried from the start",
        "mine is rejected",
        "mine omits the changes of the other",
        "mine ends without a result",
        "mine ends the other",
        "as with a completed one",
        "cannot be",
    ]
