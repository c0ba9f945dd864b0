"""The screen output of `hoodoo read`: each value whole, or with a mark if it was shortened."""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from hoodoo.cli.printing import Output, Printer
from hoodoo.cli.rows import fit_rows


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def screen(monkeypatch: pytest.MonkeyPatch, rows: pa.Table, width: int) -> tuple[str, str]:
    """The rows on a terminal of this width, and the other output."""
    out, err = Screen(), Screen()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", err)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    Printer(Output.TABLE).rows(rows.to_batches())
    text = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    lines = [line.rstrip() for line in text.splitlines()]
    return "\n".join(["", *lines, ""]), err.getvalue()


FLIGHTS = pa.table(
    {
        "dep_time": [1004, 2359],
        "sched_dep_time": [1545, 2359],
        "dep_delay": [-4, 101],
        "arr_time": [1233, 427],
        "sched_arr_time": [1245, 444],
        "arr_delay": [-12, 97],
        "carrier": ["UA", "B6"],
        "flight": [1545, 739],
        "tailnum": ["N14228", "N633JB"],
        "origin": ["EWR", "JFK"],
        "dest": ["IAH", "PSE"],
        "air_time": [227, 202],
        "distance": [1400, 1617],
        "hour": [5, 23],
        "minute": [15, 59],
        "revision": [0, 1],
    }
)
TEXTS = pa.table(
    {
        "id": ["a", "b"],
        "note": ["word " * 40, "short"],
        "name": ["東京都千代田区丸の内一丁目" * 3, "e\u0301" * 40],
        "at": [datetime(2026, 11, 27, 12, 30, tzinfo=UTC)] * 2,
        "price": [Decimal("12345678901234.56"), None],
        "tags": [[{"k": 1, "v": ["x", "y"]}] * 3, []],
    }
)


def test_no_cell_is_shortened_where_all_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, errors = screen(monkeypatch, FLIGHTS, 200)
    assert "…" not in shown
    assert errors == ""
    for name in FLIGHTS.column_names:
        assert name in shown


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("rows", [FLIGHTS, TEXTS], ids=["numbers", "texts"])
def test_each_cell_is_whole_or_ends_in_an_ellipsis(
    monkeypatch: pytest.MonkeyPatch, rows: pa.Table, width: int
) -> None:
    shown, _ = screen(monkeypatch, rows, width)
    lines = shown.strip("\n").split("\n")
    assert len(lines) == 1 + rows.num_rows
    assert all(cell_len(line) <= width for line in lines)
    if rows is FLIGHTS:
        for line, row in zip(lines[1:], rows.to_pylist(), strict=True):
            for cell, value in zip(line.split(), row.values(), strict=True):
                assert cell == str(value) or (
                    cell.endswith("…") and str(value).startswith(cell[:-1])
                )


@pytest.mark.parametrize("name", ["flights_80", "flights_120", "texts_80", "texts_120"])
def test_each_screen_has_this_layout(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    rows = FLIGHTS if name.startswith("flights") else TEXTS
    shown, _ = screen(monkeypatch, rows, int(name.rpartition("_")[2]))
    assert shown == SCREENS[name]


def test_columns_without_room_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    many = pa.table({f"column_{number:02}": [number * 10**9] for number in range(40)})
    shown, errors = screen(monkeypatch, many, 80)
    assert all(line.endswith("…") for line in shown.strip("\n").split("\n"))
    assert "column_39" in errors
    assert "--columns" in errors


def test_a_file_gets_each_value_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr("sys.stdout", out)
    Printer(Output.TABLE).rows(TEXTS.to_batches())
    assert "word " * 39 in out.getvalue()
    assert "…" not in out.getvalue()


CELLS = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=30)


@given(st.data(), st.integers(1, 6), st.integers(20, 120))
def test_no_value_is_shortened_without_a_mark(
    data: st.DataObject, columns: int, width: int
) -> None:
    row = st.lists(CELLS, min_size=columns, max_size=columns)
    names, lines = data.draw(row), data.draw(st.lists(row, max_size=4))
    fitted = fit_rows(names, lines, width)
    shown = columns - len(fitted.hidden)
    assert sum(fitted.widths) + len(fitted.widths) - 1 <= width
    for before, after in [(names, fitted.headings), *zip(lines, fitted.lines, strict=True)]:
        assert after[shown:] == (("…",) if fitted.hidden else ())
        for value, cell, room in zip(before, after, fitted.widths, strict=False):
            assert cell_len(cell) <= room
            assert cell == value or cell.endswith("…")


SCREENS = {
    "flights_80": """
dep… sche… dep… arr… sche… arr… car… fli… tailn… or… de… air… dist… ho… mi… rev…
1004 1545  -4   1233 1245  -12  UA   1545 N14228 EWR IAH 227  1400  5   15  0
2359 2359  101  427  444   97   B6   739  N633JB JFK PSE 202  1617  23  59  1
""",
    "flights_120": """
dep_ti… sched_d… dep_de… arr_ti… sched_a… arr_de… carri… flight tailnum origin dest air_ti… distance hour minute revisi…
1004    1545     -4      1233    1245     -12     UA     1545   N14228  EWR    IAH  227     1400     5    15     0
2359    2359     101     427     444      97      B6     739    N633JB  JFK    PSE  202     1617     23   59     1
""",
    "texts_80": """
id note            name            at             price          tags
a  word word word… 東京都千代田区… 2026-11-27 12… 1234567890123… [{'k': 1, 'v':…
b  short           éééééééééééééé… 2026-11-27 12…                []
""",
    "texts_120": """
id note                     name                     at                       price             tags
a  word word word word wor… 東京都千代田区丸の内一…  2026-11-27 12:30:00+00:… 12345678901234.56 [{'k': 1, 'v': ['x', 'y…
b  short                    ééééééééééééééééééééééé… 2026-11-27 12:30:00+00:…                   []
""",
}
