"""A process of the crew has a clock that may jump, and pays nothing for it while it does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.chaos.crew import faketime_library, under_clock
from tests.servers import server_missing

_TOLD = """
import json, threading, time
from tests.chaos.process import _sleep_under_libfaketime
_sleep_under_libfaketime()

def work(times):
    for _ in range(times):
        sorted(range(20_000), key=int.__neg__)

def processor_time(count):
    began = time.process_time()
    each = [threading.Thread(target=work, args=(120 // count,)) for _ in range(count)]
    for one in each: one.start()
    for one in each: one.join()
    return time.process_time() - began

alone = processor_time(1)
began = time.monotonic()
threading.Event().wait(0.2)
waited = time.monotonic() - began
print(json.dumps({"times": processor_time(4) / alone, "waited": waited, "wall": time.time()}))
"""


def _told(tmp_path: Path, offset: str) -> dict[str, float]:
    library = faketime_library()
    if library is None:
        server_missing("no libfaketime: install faketime from the distribution")
    clock = tmp_path / "clock"
    clock.write_text(offset)
    done = subprocess.run(
        [sys.executable, "-c", _TOLD],
        env={**os.environ, **under_clock(library, clock)},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        check=True,
        text=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("offset", [0, 3600, -3600])
def test_threads_that_wait_for_the_interpreters_lock_do_not_spin(
    tmp_path: Path, offset: int
) -> None:
    found = _told(tmp_path, f"{offset:+}")
    assert found["times"] < 2, found
    assert 0.2 <= found["waited"] < 5, found
    assert abs(found["wall"] - time.time() - offset) < 60, found
