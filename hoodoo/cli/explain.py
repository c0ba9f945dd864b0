"""``hoodoo explain``: the story of one instant, or the rules of conflicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from hoodoo.cli.instants import instant_named
from hoodoo.cli.invocation import Invocation, reading
from hoodoo.inspect.contention import measure_contention
from hoodoo.inspect.instants import explain_instant
from timeline.commit.conflict_report import KINDS
from timeline.rules.action_matrix import (
    ACTION_MATRIX,
    BY_STRATEGY,
    ActionCell,
    MatrixAction,
    OtherProgress,
)
from timeline.rules.conflicts import MATRIX, RuleId


@click.command()
@click.argument("address", metavar="[TABLE", required=False)
@click.argument("instant", metavar="INSTANT]", required=False)
@click.option("--matrix", is_flag=True, help="Print the rules by which writes meet.")
@click.option(
    "--contention", is_flag=True, help="Sum up who met whom on TABLE, and what would end it."
)
@click.option(
    "--resolve", is_flag=True, help="Decide first whether a write counts that nobody answered."
)
@reading
def explain(
    invocation: Invocation,
    *,
    address: str | None,
    instant: str | None,
    matrix: bool,
    contention: bool,
    resolve: bool,
) -> None:
    """
    Tell what the instant with this requested time did, who did it and what it met.

    With --resolve a publication that was cut off is finished, and a write whose writer gives no
    sign of life is rolled back: then it is published or not, and stays so.
    """
    if matrix:
        _print_matrix(invocation)
        return
    if contention and address is not None and instant is None:
        _print_contention(invocation, address)
        return
    if address is None or instant is None or contention:
        raise click.UsageError(
            "name a TABLE and an INSTANT, or a TABLE and --contention, or say --matrix"
        )
    with invocation.open_table(address) as opened:
        instant = instant_named(opened, instant)
        resolution = opened.resolve(instant) if resolve else None
        story = explain_instant(opened, instant)
    if invocation.printer.for_people:
        if resolution is not None:
            invocation.printer.line(resolution.text)
        for line in story.lines():
            invocation.printer.line(line)
        return
    document = story.as_document()
    if resolution is not None:
        document |= {"outcome": resolution.outcome.value, "why": resolution.why}
    invocation.printer.document(document)


def _print_contention(invocation: Invocation, address: str) -> None:
    with invocation.open_table(address) as opened:
        told = measure_contention(opened, archived=True)
    if invocation.printer.for_people:
        for line in told.lines():
            invocation.printer.line(line)
        return
    invocation.printer.document(told.as_document())


def _print_matrix(invocation: Invocation) -> None:
    cells = [
        {
            "mine": mine.value,
            "theirs": theirs.value,
            **_ruled(cell.rule),
            "redo": "nothing"
            if cell.rule is RuleId.NO_CONFLICT
            else ("file groups" if cell.rebaseable else "everything"),
            "why": cell.why,
        }
        for (mine, theirs), cell in MATRIX.items()
    ]
    actions = [
        _action_cell(strategy, place, cell)
        for strategy, table in (("every", ACTION_MATRIX), *BY_STRATEGY.items())
        for place, cell in table.items()
    ]
    if invocation.printer.for_people:
        invocation.printer.line("Two writes in one file group:")
        _print_grid(invocation, ("mine", "theirs", "rule", "redo", "why"), cells)
        invocation.printer.line("Two actions, where a strategy says nothing else:")
        shown = ("strategy", "mine", "theirs", "standing", "rule", "outcome", "why")
        _print_grid(invocation, shown, actions)
        return
    invocation.printer.document(
        {
            "cells": cells,
            "actions": actions,
            "rules": {rule.value: rule.name.lower() for rule in RuleId},
            "kinds": {rule.value: kind for rule, kind in KINDS.items()},
        }
    )


def _action_cell(
    strategy: str, place: tuple[MatrixAction, MatrixAction, OtherProgress], cell: ActionCell
) -> dict[str, str]:
    mine, theirs, standing = place
    return {
        "strategy": strategy,
        "mine": mine.name.lower(),
        "theirs": theirs.name.lower(),
        "standing": standing.value,
        **_ruled(cell.rule),
        "outcome": cell.outcome.value,
        "why": cell.why,
    }


def _ruled(rule: RuleId) -> dict[str, str]:
    return {"rule": rule.value, "name": rule.name.lower()}


def _print_grid(
    invocation: Invocation, columns: tuple[str, ...], cells: Sequence[Mapping[str, str]]
) -> None:
    invocation.printer.grid(columns, [tuple(cell[name] for name in columns) for cell in cells])
