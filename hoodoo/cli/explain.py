"""``hoodoo explain``: the story of one instant, or the rules of conflicts."""

from __future__ import annotations

import click

from hoodoo.cli.invocation import Invocation, reading
from hoodoo.explain import explain_instant
from timeline.rules.conflicts import MATRIX, RuleId

__all__ = ["explain"]


@click.command()
@click.argument("address", metavar="[TABLE", required=False)
@click.argument("instant", metavar="INSTANT]", required=False)
@click.option("--matrix", is_flag=True, help="Print the rules by which writes meet.")
@reading
def explain(
    invocation: Invocation, *, address: str | None, instant: str | None, matrix: bool
) -> None:
    """Tell what the instant with this requested time did, who did it and what it met."""
    if matrix:
        _print_matrix(invocation)
        return
    if address is None or instant is None:
        raise click.UsageError("name a TABLE and an INSTANT, or say --matrix")
    with invocation.open_table(address) as opened:
        story = explain_instant(opened.core, instant)
    if invocation.printer.for_people:
        for line in story.lines():
            invocation.printer.line(line)
        return
    invocation.printer.document(story.as_document())


def _print_matrix(invocation: Invocation) -> None:
    cells = [
        {
            "mine": mine.value,
            "theirs": theirs.value,
            "rule": cell.rule.value,
            "name": cell.rule.name.lower(),
            "redo": "nothing"
            if cell.rule is RuleId.NO_CONFLICT
            else ("file groups" if cell.rebaseable else "everything"),
            "why": cell.why,
        }
        for (mine, theirs), cell in MATRIX.items()
    ]
    if invocation.printer.for_people:
        invocation.printer.grid(
            ("mine", "theirs", "rule", "redo", "why"),
            [(c["mine"], c["theirs"], c["rule"], c["redo"], c["why"]) for c in cells],
        )
        return
    invocation.printer.document(
        {"cells": cells, "rules": {rule.value: rule.name.lower() for rule in RuleId}}
    )
