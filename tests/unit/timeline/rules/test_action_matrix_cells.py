"""
The action matrix cell by cell, as ``hoodoo explain --matrix`` prints it: rule, outcome and reason.

Written down a second time, so that a cell that slips into its neighbour's place is seen at once; the
stories of the table services' tests play what the cells say.
"""

from __future__ import annotations

import pytest

from timeline.rules.action_matrix import ACTION_MATRIX, BY_STRATEGY, Deed, Outcome, Standing

#: Letter -> rule, outcome, and how the reason begins.
LEGEND = {
    "a": ("C0", Outcome.STANDS, "whoever publishes second is"),
    "b": ("C0", Outcome.STANDS, "they touch different things"),
    "c": ("C0", Outcome.AS_COMPLETED, "it decided in one"),
    "d": ("C8", Outcome.REDO_ALL, "planned after I began:"),
    "e": ("C0", Outcome.STANDS, "it moves rows and"),
    "f": ("C0", Outcome.STANDS, "unless the plan is"),
    "g": ("C0", Outcome.STANDS, "a log that completes"),
    "h": ("C8", Outcome.NEVER, "a file group is"),
    "i": ("C0", Outcome.LEAVES_OUT, "what it needs stays"),
    "j": ("C6", Outcome.ENDS_IT, "the abort slot comes"),
    "k": ("C0", Outcome.STANDS, "upkeep decides in one"),
    "l": ("C0", Outcome.REFUSED, "while its heartbeat lives,"),
    "m": ("C6", Outcome.ENDS_IT, "everything after the savepoint"),
    "n": ("C9", Outcome.REDO_ALL, "one key is new"),
    "o": ("C4", Outcome.REDO_ALL, "the other replaced what"),
    "p": ("C0", Outcome.STANDS, "it spares what a"),
    "q": ("C6", Outcome.REDO_ALL, "mine was taken for"),
    "r": ("C6", Outcome.REDO_ALL, "what mine began from"),
    "s": ("C1", Outcome.REDO_FILE_GROUPS, "merged again on the"),
    "t": ("C1", Outcome.REDO_ALL, "a log is met,"),
    "u": ("C2", Outcome.REDO_ALL, "my rows must find"),
    "v": ("C1", Outcome.REDO_ALL, "logs count in the"),
    "w": ("C5", Outcome.REDO_ALL, "what came into a"),
    "x": ("C0", Outcome.STANDS, "a plan holds what"),
    "y": ("C0", Outcome.STANDS, "my result lies in"),
    "z": ("C0", Outcome.YIELDS, "the plan was taken"),
    "A": ("C0", Outcome.YIELDS, "more than further logs"),
    "B": ("C0", Outcome.LEAVES_OUT, "its groups stay as"),
    "C": ("C0", Outcome.YIELDS, "a published instant is"),
    "D": ("C0", Outcome.STANDS, "the deletes are repeated,"),
    "E": ("C0", Outcome.REFUSED, "where files of that"),
    "F": ("C1", Outcome.REDO_ALL, "both opened one bucket"),
    "G": ("C0", Outcome.ENDS_IT, "a clustering that would"),
    "H": ("C0", Outcome.LEAVES_OUT, "a live writer announced"),
    "I": ("C18", Outcome.REDO_ALL, "a partition has one"),
    "J": ("C0", Outcome.STANDS, "an insert that drops"),
    "K": ("C0", Outcome.STANDS, "unless logs had deleted"),
}

#: Mine -> letters of theirs, in the order of ``Deed``.
CELLS = {
    Standing.PENDING: {
        Deed.INSERT: "aaaa bbb ccccc",
        Deed.UPDATE: "aaaa def ccccc",
        Deed.APPEND: "aaaa gef ccccc",
        Deed.OVERWRITE: "aaaa eef ccccc",
        Deed.COMPACTION: "aaaa hhh ccccc",
        Deed.LOG_COMPACTION: "aaaa hhh ccccc",
        Deed.CLUSTERING: "aaaa hhh ccccc",
        Deed.CLEAN: "iiii iii ccccc",
        Deed.ROLLBACK: "jjjj kkk ccccc",
        Deed.RESTORE: "llll mmm ccccc",
        Deed.SAVEPOINT: "kkkk kkk ccccc",
        Deed.ARCHIVE: "iiii iii ccccc",
    },
    Standing.COMPLETED: {
        Deed.INSERT: "nJJo bbb pqrkk",
        Deed.UPDATE: "bsto stu pqrkk",
        Deed.APPEND: "Ktvo geu pqrkk",
        Deed.OVERWRITE: "wwww eew pqrkk",
        Deed.COMPACTION: "bxxy hhh pkzkk",
        Deed.LOG_COMPACTION: "bAxA hhh pkzkk",
        Deed.CLUSTERING: "bBBB hhh pkzkk",
        Deed.CLEAN: "kkkk kkk kkkik",
        Deed.ROLLBACK: "CCCC kkk kDkkk",
        Deed.RESTORE: "mmmm mmm Ekkkk",
        Deed.SAVEPOINT: "kkkk kkk EkEkk",
        Deed.ARCHIVE: "kkkk kkk kkkik",
    },
}

#: Strategy -> (mine, theirs, standing, letter) of the cells that differ.
BY_NAME = {
    "simple": [],
    "bucket": [
        (Deed.INSERT, Deed.INSERT, Standing.COMPLETED, "F"),
    ],
    "prefer_writer": [
        (Deed.UPDATE, Deed.CLUSTERING, Standing.PENDING, "G"),
        (Deed.APPEND, Deed.CLUSTERING, Standing.PENDING, "G"),
        (Deed.OVERWRITE, Deed.CLUSTERING, Standing.PENDING, "G"),
        (Deed.CLUSTERING, Deed.UPDATE, Standing.PENDING, "H"),
        (Deed.CLUSTERING, Deed.APPEND, Standing.PENDING, "H"),
    ],
    "partition": [
        (Deed.INSERT, Deed.INSERT, Standing.COMPLETED, "I"),
        (Deed.INSERT, Deed.UPDATE, Standing.COMPLETED, "I"),
        (Deed.INSERT, Deed.APPEND, Standing.COMPLETED, "I"),
        (Deed.UPDATE, Deed.INSERT, Standing.COMPLETED, "I"),
        (Deed.UPDATE, Deed.UPDATE, Standing.COMPLETED, "I"),
        (Deed.APPEND, Deed.INSERT, Standing.COMPLETED, "I"),
    ],
}


def shown(cell: object, letter: str) -> tuple[str, Outcome, str]:
    begins = LEGEND[letter][2]
    return (cell.rule.value, cell.outcome, cell.why[: len(begins)])


@pytest.mark.parametrize("standing", Standing)
@pytest.mark.parametrize("mine", Deed)
def test_each_cell_has_its_rule_its_outcome_and_its_reason(mine: Deed, standing: Standing) -> None:
    letters = CELLS[standing][mine].replace(" ", "")
    found = [
        shown(ACTION_MATRIX[mine, theirs, standing], letter)
        for theirs, letter in zip(Deed, letters, strict=True)
    ]
    assert found == [LEGEND[letter] for letter in letters]


@pytest.mark.parametrize("strategy", BY_NAME)
def test_a_strategy_differs_in_these_cells_and_no_other(strategy: str) -> None:
    table = BY_STRATEGY[strategy]
    assert list(table) == [
        (mine, theirs, standing) for mine, theirs, standing, _ in BY_NAME[strategy]
    ]
    for mine, theirs, standing, letter in BY_NAME[strategy]:
        assert shown(table[mine, theirs, standing], letter) == LEGEND[letter]


def test_strategies_are_told_in_this_order() -> None:
    assert list(BY_STRATEGY) == ["simple", "bucket", "prefer_writer", "partition"]


def test_words_of_the_printed_matrix_are_stable() -> None:
    assert [deed.value for deed in Deed] == [
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
    assert [standing.value for standing in Standing] == ["pending", "completed"]
    assert [outcome.value for outcome in Outcome] == [
        "both stand",
        "mine is redone for these file groups",
        "mine is redone from the start",
        "mine is refused",
        "mine leaves out what the other has",
        "mine ends without a result",
        "mine ends the other",
        "as beside a completed one",
        "cannot be",
    ]
