"""
The tests that every slot store must pass.

The test file of an adapter subclasses ``SlotStoreSuite``. Its ``open_store`` opens the store of a
folder, in any process. A store whose create checks the name and then writes does not pass, because
the racers below are processes and threads that start at the same time.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar, TypeVar

import pytest

from timeline.ports.ports import ObjectExistsError, ObjectMissingError, SlotStore

Answer = TypeVar("Answer")

RACERS = 4  # threads of ``together``
_FOLDER = "0b6c/slots"

# Takes numbers as a writer does: the number after the greatest one that it has listed.
_RACER = """
import importlib, sys
from pathlib import Path
from timeline.testing.slot_suite import race
module, name, folder, racer, numbers = sys.argv[1:]
opened = getattr(importlib.import_module(module), name)(Path(folder))
sys.stdin.readline()
print(*race(opened, racer, int(numbers)))
opened.close()
"""


def race(store: SlotStore, racer: str, numbers: int) -> list[int]:
    """Take numbers until all are taken; return those that this racer took."""
    won, number = [], 1
    while number <= numbers:
        try:
            store.create(_slot(number), f"{racer} {number}".encode())
            won.append(number)
        except ObjectExistsError:
            number = max(map(int, store.names(_FOLDER)), default=0)  # as SLOT-2 finds the head
        number += 1
    return won


def _slot(number: int) -> str:
    return f"{_FOLDER}/{number:020d}"


class SlotStoreSuite:
    """
    The suite; subclass it with a name that starts with ``Test`` and set ``open_store``.

    Attributes:
        open_store: Opens the store that is in, or is named by, a folder; a function of a
            module, because other processes call it, too. Every call is another client.
        processes: The number of processes that race; fewer than 2 for a store of one process.
        race_numbers: The number of slot numbers that they race for.
    """

    open_store: ClassVar[Callable[[Path], SlotStore]]
    processes: ClassVar[int] = 2
    race_numbers: ClassVar[int] = 60

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """Return the folder of an empty store; override it for a store on a server."""
        return tmp_path

    @pytest.fixture
    def store(self, folder: Path) -> Iterator[SlotStore]:
        """Open a client; close it after the test."""
        with self._opened(folder) as opened:
            yield opened

    @contextlib.contextmanager
    def _opened(self, folder: Path) -> Iterator[SlotStore]:
        opened = type(self).open_store(folder)
        try:
            yield opened
        finally:
            opened.close()

    # ------------------------------------------------------------ one creator

    def test_created_object_is_read_back_by_everybody(self, store: SlotStore, folder: Path) -> None:
        """An object may be empty, hold every byte value, and have 256 KiB."""
        with self._opened(folder) as other:
            for name, data in (
                ("empty", b""),
                ("bytes", bytes(range(256))),
                ("long", b"0123456789abcdef" * 16_384),
            ):
                store.create(f"{_FOLDER}/{name}", data)
                assert other.read(f"{_FOLDER}/{name}") == data

    def test_taken_name_is_refused_and_keeps_its_bytes(
        self, store: SlotStore, folder: Path
    ) -> None:
        """A create of a taken name changes nothing, from this client or another one."""
        store.create(_slot(1), b"first")
        with self._opened(folder) as other:
            for loser in (store, other):
                with pytest.raises(ObjectExistsError) as refused:
                    loser.create(_slot(1), b"second")
                assert refused.value.args == (_slot(1),)
        assert store.read(_slot(1)) == b"first"

    def test_repeated_create_shows_the_first_nonce(self, store: SlotStore) -> None:
        """A client that lost an answer repeats the create, and reads the owner (UNK-1, UNK-2)."""
        store.create(_slot(1), b"nonce-of-mine")
        with pytest.raises(ObjectExistsError):
            store.create(_slot(1), b"nonce-of-mine")
        assert store.read(_slot(1)) == b"nonce-of-mine"

    def test_missing_object_is_reported(self, store: SlotStore) -> None:
        """A writer probes the number after the head (SLOT-2)."""
        with pytest.raises(ObjectMissingError) as missing:
            store.read(_slot(1))
        assert missing.value.args == (_slot(1),)
        store.create(_slot(2), b"")
        with pytest.raises(ObjectMissingError):
            store.read(_slot(1))

    def test_names_are_those_of_the_folder_alone(self, store: SlotStore, folder: Path) -> None:
        """The list of names is sorted, and complete right after a create."""
        assert store.names(_FOLDER) == []
        for path in (_slot(2), _slot(10), _slot(1), f"{_FOLDER}2/3", "0b6c/4", f"{_FOLDER}/5/6"):
            store.create(path, b"x")
        expected = [f"{number:020d}" for number in (1, 2, 10)]
        assert store.names(_FOLDER) == expected
        with self._opened(folder) as other:
            assert other.names(_FOLDER) == expected
        assert store.names("0b6c/no-such-folder") == []

    def test_many_names_are_all_listed(self, store: SlotStore) -> None:
        """A list joins the pages of a store's answer."""
        for number in range(1, 41):
            store.create(_slot(number), b"y" * 50_000)
        assert list(map(int, store.names(_FOLDER))) == list(range(1, 41))

    def test_names_in_all_alphabets_stay_apart(self, store: SlotStore) -> None:
        """Addresses and partition paths are parts of names, so no collation may merge two names."""
        paths = [f"born/{name}/000001" for name in ("Köln", "köln", "koln", "城市", "a%2Fb", "a b")]
        paths.append(f"born/{'x' * 200}/000001")
        paths.append(f"born/{'x' * 200}y/000001")
        for path in paths:
            store.create(path, path.encode())
        assert [store.read(path) for path in paths] == [path.encode() for path in paths]

    def test_deletion_below_the_boundary_leaves_the_rest(self, store: SlotStore) -> None:
        """A repeated delete is no error (GC-5)."""
        for number in range(1, 6):
            store.create(_slot(number), b"%d" % number)
        for _ in range(2):
            for number in range(1, 4):
                store.delete(_slot(number))
        assert list(map(int, store.names(_FOLDER))) == [4, 5]
        with pytest.raises(ObjectMissingError):
            store.read(_slot(3))
        assert store.read(_slot(4)) == b"4"

    def test_collected_number_can_be_taken_again(self, store: SlotStore) -> None:
        """No store refuses this, so a writer reads the truncation point after its create (GC-2)."""
        store.create(_slot(1), b"collected")
        store.delete(_slot(1))
        store.create(_slot(1), b"stalled")
        assert store.read(_slot(1)) == b"stalled"

    # ------------------------------------------------------------ races

    def test_threads_that_race_for_a_number_have_one_winner(self, folder: Path) -> None:
        """Each thread has its own client."""
        with contextlib.ExitStack() as opened:
            clients = [opened.enter_context(self._opened(folder)) for _ in range(RACERS)]
            for number in range(1, 11):
                self._race_for(number, clients)

    def test_threads_of_one_client_have_one_winner(self, store: SlotStore) -> None:
        """The threads of a process commit through one client."""
        for number in range(1, 11):
            self._race_for(number, [store] * RACERS)

    def _race_for(self, number: int, clients: list[SlotStore]) -> None:
        def enter(racer: int) -> int | None:
            try:
                clients[racer].create(_slot(number), b"racer %d" % racer)
            except ObjectExistsError:
                return None
            return racer

        winners = [racer for racer in together(enter) if racer is not None]
        assert len(winners) == 1
        for client in clients:
            assert client.read(_slot(number)) == b"racer %d" % winners[0]

    def test_processes_that_race_for_numbers_have_one_winner_each(
        self, store: SlotStore, folder: Path
    ) -> None:
        """The slots have no gap, and each one has the bytes of its winner."""
        if self.processes < 2:
            pytest.skip("a store of one process")
        opener = type(self).open_store
        names = [f"racer-{number}" for number in range(self.processes)]
        racers = [
            subprocess.Popen(  # noqa: S603 - this very Python
                [
                    *(sys.executable, "-c", _RACER, opener.__module__, opener.__qualname__),
                    *(str(folder), name, str(self.race_numbers)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for name in names
        ]
        for racer in racers:  # all have imported; now they start
            if racer.stdin is not None:
                racer.stdin.write("go\n")
                racer.stdin.flush()
        outputs = [racer.communicate(timeout=200)[0] for racer in racers]
        assert [racer.returncode for racer in racers] == [0] * len(racers)
        won = {
            int(number): name
            for name, text in zip(names, outputs, strict=True)
            for number in text.split()
        }
        assert sum(len(text.split()) for text in outputs) == self.race_numbers
        assert sorted(won) == list(range(1, self.race_numbers + 1))
        assert {number: store.read(_slot(number)).decode() for number in won} == {
            number: f"{name} {number}" for number, name in won.items()
        }


def together(act: Callable[[int], Answer]) -> list[Answer]:
    """Run ``act`` in several threads that start at the same time; return the results."""
    start = threading.Barrier(RACERS)

    def begin(racer: int) -> Answer:
        start.wait(timeout=120)
        return act(racer)

    with ThreadPoolExecutor(RACERS) as pool:
        return list(pool.map(begin, range(RACERS)))
