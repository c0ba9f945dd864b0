"""Run the streams of tests to their end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

STARTING_S = 120
NOT_STARTED = "Python worker failed to connect back"


def run_to_its_end(start: Callable[[], Any]) -> None:
    """
    Run a stream over the existing rows.

    Spark waits ten seconds, not configurable, for the process of a source to start; a busy machine
    needs longer. Then nothing was read, and the stream is started again.
    """
    from pyspark.errors import StreamingQueryException

    until = time.monotonic() + STARTING_S
    while True:
        try:
            start().awaitTermination()
        except StreamingQueryException as error:
            if NOT_STARTED not in str(error) or time.monotonic() > until:
                raise
        else:
            return
