"""
Rows as a table of a screen's width: each cell is whole, or ends in an ellipsis.

Values come first: where there is no room the headings are shortened before them, then the longest
values. Columns that find no room at all are left out at the end, and one of ellipses tells so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

__all__ = ["FittedRows", "fit_rows"]

ELLIPSIS = "…"
_GAP = 1  # between two columns
_HEADING_MIN = 3
_VALUE_MIN = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedRows:
    """
    What is shown.

    Args:
        headings: One a column that is shown, perhaps shortened.
        lines: The cells of each row, perhaps shortened.
        widths: Of the columns, in cells of the screen.
        hidden: The names of the columns that are not shown.
    """

    headings: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    widths: tuple[int, ...]
    hidden: tuple[str, ...]

    def text_lines(self, width: int | None) -> list[str]:
        """The headings and rows, columns apart by two cells where there is room for that."""
        wide = sum(self.widths) + 2 * (len(self.widths) - 1)
        gap = " " * (2 if width is None or wide <= width else _GAP)
        return [
            gap.join(
                cell + " " * (room - cell_len(cell))
                for cell, room in zip(line, self.widths, strict=True)
            ).rstrip()
            for line in (self.headings, *self.lines)
        ]


def fit_rows(
    headings: Sequence[str], lines: Sequence[Sequence[str]], width: int | None
) -> FittedRows:
    """
    Fit rows into a screen.

    Args:
        headings: Names of the columns.
        lines: The cells of each row, without line breaks.
        width: Cells of a line; None for as many as are needed.
    """
    values = [max((cell_len(line[at]) for line in lines), default=0) for at in range(len(headings))]
    names = [cell_len(heading) for heading in headings]
    shown = len(headings)
    if width is not None:
        shown = _columns_with_room(values, names, width)
        if shown < len(headings):
            shown = _columns_with_room(values, names, width - _GAP - 1)
    hidden = tuple(headings[shown:])
    room = None if width is None else width - (_GAP + 1 if hidden else 0) - _GAP * (shown - 1)
    widths = _widths(values[:shown], names[:shown], room)
    marks = [ELLIPSIS] if hidden else []
    return FittedRows(
        headings=(*map(_cut, headings, widths), *marks),
        lines=tuple((*map(_cut, line, widths), *marks) for line in lines),
        widths=(*widths, *(1 for _ in marks)),
        hidden=hidden,
    )


def _columns_with_room(values: Sequence[int], names: Sequence[int], width: int) -> int:
    """How many of the first columns fit with the least that is readable; one at least."""
    left = width + _GAP
    for at, least in enumerate(map(_least, values, names)):
        left -= least + _GAP
        if left < 0:
            return max(at, 1)
    return len(values)


def _least(value: int, name: int) -> int:
    return max(min(value, _VALUE_MIN), min(name, _HEADING_MIN))


def _widths(values: Sequence[int], names: Sequence[int], room: int | None) -> list[int]:
    """The width of each column, in all as much as there is room for."""
    wanted = [max(value, name) for value, name in zip(values, names, strict=True)]
    if room is None or sum(wanted) <= room:
        return wanted
    needed = [
        max(value, min(name, _HEADING_MIN)) for value, name in zip(values, names, strict=True)
    ]
    if sum(needed) > room:
        return _shared(needed, room)
    rest = _shared([one - two for one, two in zip(wanted, needed, strict=True)], room - sum(needed))
    return [one + two for one, two in zip(needed, rest, strict=True)]


def _shared(wanted: Sequence[int], room: int) -> list[int]:
    """Each gets what it wants up to one common bound; what is left over goes to the first."""
    given = [0] * len(wanted)
    left = max(room, 0)
    for rank, at in enumerate(sorted(range(len(wanted)), key=lambda at: wanted[at])):
        given[at] = min(wanted[at], left // (len(wanted) - rank))
        left -= given[at]
    return given


def _cut(text: str, width: int) -> str:
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip() + ELLIPSIS if width > 0 else ""
