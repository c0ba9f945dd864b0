"""``hoodoo explain``: one instant, the contention of a table, or the conflict rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from hoodoo.cli.instants import instant_named
from hoodoo.cli.invocation import Command, Invocation, reading
from hoodoo.inspect.contention import measure_contention
from hoodoo.inspect.explain import explain_instant
from timeline.commit.conflict_report import KINDS
from timeline.rules.action_matrix import (
    ACTION_MATRIX,
    BY_STRATEGY,
    ActionCell,
    MatrixAction,
    OtherProgress,
)
from timeline.rules.conflicts import MATRIX, RuleId


@click.command(cls=Command)
@click.argument("address", metavar="[TABLE", required=False)
@click.argument("instant", metavar="INSTANT | TABLE --contention]", required=False)
@click.option("--matrix", is_flag=True, help="Print the conflict rules.")
@click.option(
    "--contention", is_flag=True, help="Add up the conflicts of TABLE, with advice against them."
)
@click.option(
    "--resolve",
    is_flag=True,
    help="Commit the instant or roll it back first, if its outcome is unknown.",
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
    Explain an instant, or the conflict rules.

    An INSTANT is explained with its writer, times, rows and conflicts. --resolve completes an
    interrupted commit and rolls back the write of a dead writer. The outcome is then final.

    \b
      hoodoo explain TABLE @-1            the newest write
      hoodoo explain TABLE --contention   all conflicts and rejected writes
      hoodoo explain --matrix             the conflict rules
    """  # noqa: D301 - click needs the control character
    if matrix:
        _print_matrix(invocation)
        return
    if contention and address is not None and instant is None:
        _print_contention(invocation, address)
        return
    if address is None or instant is None or contention:
        raise click.UsageError(
            "name a TABLE and an INSTANT, or a TABLE and --contention, or use --matrix"
        )
    if not resolve:
        with invocation.open_timeline(address) as context:
            summary = explain_instant(context, instant_named(context, instant))
        invocation.printer.result(summary.as_document(), *summary.lines())
        return
    with invocation.open_table(address) as opened:
        named = instant_named(opened.context, instant)
        resolution = opened.resolve(named)
        summary = explain_instant(opened.context, named)
    document = summary.as_document() | {
        "outcome": resolution.outcome.value,
        "why": resolution.why,
    }
    invocation.printer.result(document, resolution.text, *summary.lines())


def _print_contention(invocation: Invocation, address: str) -> None:
    with invocation.open_timeline(address) as context:
        found = measure_contention(context, archived=True)
    invocation.printer.result(found.as_document(), *found.lines())


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
        for strategy in dict.fromkeys(one["strategy"] for one in actions):
            invocation.printer.line()
            invocation.printer.line(
                "Two actions, unless a strategy has its own rule:"
                if strategy == "every"
                else f"Two actions, with the strategy or index {strategy}:"
            )
            invocation.printer.grid(
                ("mine", "theirs", "state", "rule", "outcome"),
                [
                    (
                        one["mine"],
                        one["theirs"],
                        one["standing"],
                        one["rule"],
                        f"{one['outcome']}: {one['why']}",
                    )
                    for one in actions
                    if one["strategy"] == strategy
                ],
            )
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
