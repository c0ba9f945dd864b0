"""A command under a lease: its exit code passes, and it never outlives the lease."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hoodoo.cli.locks import run_under
from timeline.errors import LeaseLostError

WAITING = """
import importlib.util, sys
sys.path.insert(0, sys.argv[1])
file = sys.argv[1] + "/hoodoo/cli/locks.py"  # alone: the whole command line takes long
spec = importlib.util.spec_from_file_location("under_lock", file)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
class Held:
    owner, fencing_token = "me", 7
    def assert_held(self): pass
sys.exit(module.run_under(Held(), sys.argv[2:], kill_after_seconds=1))
"""
ROOT = Path(__file__).resolve().parents[4]


PATIENCE_S = 60


class TestLease:
    """A lease that is lost once something has happened."""

    __test__ = False
    owner = "here/41/w1"
    fencing_token = 7

    def __init__(self, lost: Callable[[], bool] = lambda: False) -> None:
        self.lost = lost

    def assert_held(self) -> None:
        if self.lost():
            raise LeaseLostError("somebody else has it")


def shell(script: str, lease: TestLease | None = None, *, kill_after_seconds: float = 0.3) -> int:
    return run_under(
        lease or TestLease(), ["sh", "-c", script], kill_after_seconds=kill_after_seconds
    )


def telling(pid: str, path: Path) -> str:
    """Shell commands that write a process's number into a file, whole when it appears."""
    return f"echo {pid} > {path}.new; mv {path}.new {path}"


@pytest.mark.parametrize("code", [0, 1, 4, 77])
def test_exit_code_of_the_command_is_passed_on(code: int) -> None:
    assert shell(f"exit {code}") == code


def test_a_signal_that_ends_the_command_gives_the_exit_code_of_a_shell() -> None:
    assert shell("kill -9 $$") == 137


def test_a_command_that_cannot_be_started_gives_the_exit_code_of_a_shell(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program")
    assert run_under(TestLease(), ["no-such-program-here"], kill_after_seconds=1) == 127
    assert run_under(TestLease(), [str(tmp_path / "text")], kill_after_seconds=1) == 126


def test_a_command_gets_owner_and_token(tmp_path: Path) -> None:
    shell(f'echo "$HOODOO_LOCK_OWNER $HOODOO_LOCK_TOKEN" > {tmp_path}/seen')
    assert (tmp_path / "seen").read_text() == "here/41/w1 7\n"


def test_no_shell_interprets_the_arguments(tmp_path: Path) -> None:
    command = ["touch", f"{tmp_path}/a; touch {tmp_path}/b"]
    run_under(TestLease(), command, kill_after_seconds=1)
    assert not (tmp_path / "b").exists()


def test_lost_lease_ends_the_command_with_all_its_processes(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    trap = f"trap 'echo ended > {tmp_path}/ended; exit' TERM"
    script = f"{trap}; sleep 600 & {telling('$!', pid)}; wait"
    with pytest.raises(LeaseLostError):
        shell(script, TestLease(pid.exists), kill_after_seconds=PATIENCE_S)
    assert (tmp_path / "ended").read_text() == "ended\n"
    assert is_gone(int(pid.read_text()))


def test_command_that_ignores_its_end_is_killed(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = f"trap '' TERM; {telling('$$', pid)}; while :; do sleep 0.05; done"
    with pytest.raises(LeaseLostError):
        shell(script, TestLease(pid.exists))
    assert is_gone(int(pid.read_text()))


def test_a_lost_lease_starts_no_command(tmp_path: Path) -> None:
    with pytest.raises(LeaseLostError):
        shell(f"touch {tmp_path}/started", TestLease(lambda: True))
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_reach_the_command(tmp_path: Path, number: signal.Signals) -> None:
    name = number.name.removeprefix("SIG")
    script = f"trap 'exit 42' {name}; touch {tmp_path}/ready; while :; do sleep 0.05; done"
    with running(["sh", "-c", script]) as outer:
        wait_for(tmp_path / "ready")
        outer.send_signal(number)
        assert outer.wait(PATIENCE_S) == 42


def test_command_dies_with_its_killed_parent(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    with running(["sh", "-c", f"{telling('$$', pid)}; exec sleep 600"]) as outer:
        wait_for(pid)
        outer.kill()
        outer.wait(PATIENCE_S)
        assert is_gone(int(pid.read_text()))


@contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-c", WAITING, str(ROOT), *command], stdin=subprocess.DEVNULL
    ) as outer:
        try:
            yield outer
        finally:
            outer.kill()  # or a test that failed would wait for it


def wait_for(path: Path) -> None:
    end = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True  # dead, and not yet reaped by its adoptive parent
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.02)
    return False
