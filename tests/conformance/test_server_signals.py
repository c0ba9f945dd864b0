"""The servers of the tests stop when they are frozen, in all their threads."""

from __future__ import annotations

import subprocess
import sys

from tests.servers.signals import end, freeze, states, thaw

BUSY = """
import threading
def work():
    while True:
        sum(range(1000))
for _ in range(7):
    threading.Thread(target=work, daemon=True).start()
print("all there", flush=True)
work()
"""


def test_frozen_process_has_no_thread_that_runs_when_the_call_returns() -> None:
    process = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"all there\n"
        for _ in range(30):
            freeze(process.pid)
            assert list(states(process.pid).values()) == ["T"] * 8
            thaw(process.pid)
        end(process.pid)
        assert list(states(process.pid).values()) == ["Z"]
    finally:
        process.kill()
        process.communicate()
