"""The progress of long work as a bar, for a person who watches standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, TaskID

from hoodoo.cli.invocation import Invocation
from timeline.ports.events import EventSink, Value

__all__ = ["shown_progress"]


class _Bar:
    """An event sink that moves the bar; the work is one round of one service at a time."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown
        self._task: TaskID = shown.add_task("file groups", total=None, visible=False)

    def emit(self, name: str, /, **fields: Value) -> None:
        if name != "service.progress":
            return
        done, total = fields["done"], fields["of"]
        if isinstance(done, int) and isinstance(total, int):
            self._shown.update(self._task, total=total, completed=done, visible=done < total)


@contextmanager
def shown_progress(invocation: Invocation) -> Iterator[Sequence[EventSink]]:
    """Who else hears the events of a table while it is worked on; nobody without a watcher."""
    if not (invocation.printer.tells and sys.stderr.isatty()):
        yield ()
        return
    with Progress(console=Console(stderr=True), transient=True) as shown:
        yield (_Bar(shown),)
