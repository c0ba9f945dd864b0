"""
The suite that every lock provider must pass, third-party ones as well as ours.

The test file of a provider subclasses it, builds a client and states the provider's promises::

    def make_client(folder: Path) -> LockClient: ...


    class TestMine(LockProviderSuite):
        capabilities = ENTRY.capabilities
        make_client = staticmethod(make_client)

The suite tests what the provider promises; it skips the rest and reports that. It starts threads
and, for ``between_processes``, processes; it takes a few seconds.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from lockproviders.acquire import ProviderLock
from lockproviders.client import LockClient
from lockproviders.doctor import examine
from lockproviders.hookspecs import LockCapabilities
from lockproviders.testing.contender import (
    COUNTER,
    GO,
    HELD,
    PATIENCE_MS,
    READY,
    build_lock_over,
    count_under,
    wait_for,
)
from timeline.errors import LeaseLostError, LockTimeoutError
from timeline.system import SystemClock

THREADS = 4
PROCESSES = 3
SHORT_MS = 60
PROCESS_SECONDS_MAX = 200.0
AFTER_DEATH_MS_MAX = 90_000


class LockProviderSuite:
    """
    Base class of a provider's conformance tests.

    Attributes:
        capabilities: The promises of the provider's entry.
        make_client: ``(folder) -> LockClient``; clients of one folder share a lock. Other processes
            load its file and call it by name.
        rounds: How often each thread and process adds one under the lock.
    """

    capabilities: ClassVar[LockCapabilities]
    make_client: ClassVar[Callable[[Path], LockClient]]
    rounds: ClassVar[int] = 20

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """Return the folder whose lock is tested."""
        return tmp_path

    @pytest.fixture
    def new_client(self, folder: Path) -> Iterator[Callable[[], LockClient]]:
        """Make clients of the folder's lock; close them after the test."""
        with contextlib.ExitStack() as made:
            yield lambda: made.enter_context(contextlib.closing(type(self).make_client(folder)))

    @pytest.fixture
    def new_lock(self, folder: Path) -> Iterator[Callable[..., ProviderLock]]:
        """Make locks of the folder; close them after the test."""
        with contextlib.ExitStack() as made:

            def build(*, deadline_ms: int = PATIENCE_MS) -> ProviderLock:
                client = type(self).make_client(folder)
                lock = build_lock_over(client, deadline_ms=deadline_ms)
                return made.enter_context(contextlib.closing(lock))

            yield build

    def test_two_clients_of_one_lock_have_the_same_identity(
        self, new_lock: Callable[..., ProviderLock]
    ) -> None:
        assert new_lock().identity == new_lock().identity

    def test_client_refuses_at_once_while_another_holds(
        self, new_client: Callable[[], LockClient]
    ) -> None:
        one, other = new_client(), new_client()
        holding = one.try_acquire("one")
        assert holding is not None
        assert other.try_acquire("other") is None
        assert one.try_acquire("one again") is None, "the lock must not be re-entrant"
        assert holding.is_held()
        holding.release()

    def test_threads_exclude_each_other(
        self, folder: Path, new_lock: Callable[..., ProviderLock]
    ) -> None:
        shared = new_lock()
        locks = [shared, shared, *(new_lock() for _ in range(THREADS - 2))]
        failures: list[BaseException] = []
        together = threading.Barrier(THREADS, timeout=PROCESS_SECONDS_MAX)

        def work(lock: ProviderLock) -> None:
            try:
                together.wait()
                count_under(lock, folder, self.rounds)
            except BaseException as error:  # noqa: BLE001  the test's own thread reports it
                failures.append(error)

        threads = [threading.Thread(target=work, args=(lock,)) for lock in locks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert _counted(folder) == THREADS * self.rounds

    def test_timeout_names_the_holder(self, new_lock: Callable[..., ProviderLock]) -> None:
        with new_lock().acquire("slow publication") as lease:
            with pytest.raises(LockTimeoutError) as caught:
                new_lock(deadline_ms=SHORT_MS).acquire("impatient")
            assert lease.owner in caught.value.fields["holder"]

    def test_free_lock_has_no_holder(self, new_client: Callable[[], LockClient]) -> None:
        client = new_client()
        assert client.holder() is None
        holding = client.try_acquire("me")
        assert holding is not None
        assert "me" in (client.holder() or "")
        holding.release()
        assert client.holder() is None

    def test_release_twice_is_no_error(self, new_lock: Callable[..., ProviderLock]) -> None:
        lease = new_lock().acquire("once")
        lease.release()
        lease.release()

    def test_late_release_leaves_the_next_holder_alone(
        self, new_lock: Callable[..., ProviderLock], new_client: Callable[[], LockClient]
    ) -> None:
        first = new_client().try_acquire("first")
        assert first is not None
        first.release()
        with new_lock().acquire("second") as second:
            first.release()
            second.assert_held()
            assert not first.is_held()
            with pytest.raises(LockTimeoutError):
                new_lock(deadline_ms=SHORT_MS).acquire("third")

    def test_refused_client_may_close_without_harm(
        self, new_lock: Callable[..., ProviderLock]
    ) -> None:
        with new_lock().acquire("holder") as lease:
            refused = new_lock(deadline_ms=SHORT_MS)
            with pytest.raises(LockTimeoutError):
                refused.acquire("refused")
            refused.close()
            lease.assert_held()

    def test_released_lease_is_not_held(self, new_lock: Callable[..., ProviderLock]) -> None:
        lease = new_lock().acquire("short")
        lease.assert_held()
        lease.release()
        with pytest.raises(LeaseLostError):
            lease.assert_held()

    def test_closing_the_lock_releases_it(self, new_lock: Callable[..., ProviderLock]) -> None:
        closed = new_lock()
        lease = closed.acquire("forgotten")
        closed.close()
        with pytest.raises(LeaseLostError):
            lease.assert_held()
        new_lock(deadline_ms=SHORT_MS).acquire("next").release()

    def test_doctor_finds_it_healthy(self, new_lock: Callable[..., ProviderLock]) -> None:
        examination = examine(new_lock(), new_lock(deadline_ms=SHORT_MS), clock=SystemClock())
        assert [check for check in examination.checks if not check.ok] == []

    def test_fencing_tokens_grow(self, folder: Path, new_lock: Callable[..., ProviderLock]) -> None:
        if not self.capabilities.fencing_tokens:
            pytest.skip("not claimed: fencing_tokens")
        tokens = count_under(new_lock(), folder, 3) + count_under(new_lock(), folder, 3)
        known = [token for token in tokens if token is not None]
        assert len(known) == len(tokens)
        assert known == sorted(set(known))

    def test_lease_without_expiry_has_no_end(self, new_lock: Callable[..., ProviderLock]) -> None:
        with new_lock().acquire("end") as lease:
            remaining_ms = lease.remaining_ms()
        assert (remaining_ms is not None) == self.capabilities.expires

    def test_processes_exclude_each_other(self, folder: Path) -> None:
        self._needs_processes()
        others = [self._start(folder, "count", str(self.rounds)) for _ in range(PROCESSES)]
        try:
            wait_for(lambda: len(list(folder.glob(f"{READY}-*"))) == PROCESSES)
            (folder / GO).touch()
            codes = [other.wait(PROCESS_SECONDS_MAX) for other in others]
        finally:
            for other in others:
                other.kill()
                other.wait(PROCESS_SECONDS_MAX)
        assert codes == [0] * PROCESSES
        assert _counted(folder) == PROCESSES * self.rounds

    def test_killed_holder_does_not_block_for_ever(
        self, folder: Path, new_lock: Callable[..., ProviderLock]
    ) -> None:
        self._needs_processes()
        victim = self._start(folder, "hold")
        try:
            wait_for((folder / HELD).exists)
            with pytest.raises(LockTimeoutError):
                new_lock(deadline_ms=SHORT_MS).acquire("too early")
        finally:
            victim.send_signal(signal.SIGKILL)
            victim.wait(PROCESS_SECONDS_MAX)
        patience_ms = AFTER_DEATH_MS_MAX if self.capabilities.expires else 5_000
        with new_lock(deadline_ms=patience_ms).acquire("heir") as lease:
            lease.assert_held()

    def _needs_processes(self) -> None:
        if not self.capabilities.between_processes:
            pytest.skip("not claimed: between_processes")

    def _start(self, folder: Path, *task: str) -> subprocess.Popen[bytes]:
        function = type(self).make_client
        command = [
            *(sys.executable, "-m", "lockproviders.testing.contender"),
            *(inspect.getfile(function), function.__qualname__, str(folder), *task),
        ]
        inherited = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.Popen(command, env=inherited)


def _counted(folder: Path) -> int:
    return int((folder / COUNTER).read_text(encoding="ascii"))
