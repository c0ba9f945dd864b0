"""The bar of long work: moved by events, gone at its end."""

from __future__ import annotations

import io

from rich.console import Console
from rich.progress import Progress

from hoodoo.cli.invocation import _Bar


def test_the_bar_follows_the_file_groups_that_are_done() -> None:
    shown = Progress(console=Console(file=io.StringIO()), disable=True)
    bar = _Bar(shown)
    [task] = shown.tasks
    assert not task.visible
    bar.emit("publish.done", done=9, of=9)
    bar.emit("service.progress", done=1, of=3)
    assert (task.completed, task.total, task.visible) == (1, 3, True)
    bar.emit("service.progress", done=3, of=3)
    assert not task.visible
