"""
A slow wire that counts: the requests that pass, and the round trips that a client waits for.

Times depend on the machine and counts do not, and a writer far from its lock service pays for
nothing else. Answers are late by a fixed delay, longer than a client computes between two
requests. So requests that are sent together are one round trip. A request without a waiting
client costs none if the next request leaves before its answer.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

HOST = "127.0.0.1"
CHUNK_BYTES = 65_536
DELAY_SECONDS = 0.015


class CountingWire:
    """
    The wire to one server; ``with CountingWire(port) as wire`` and connect to ``wire.port``.

    Args:
        port: The server's port on 127.0.0.1.
        is_zookeeper: Count its frames instead of exchanges, and leave its beats out.
    """

    def __init__(self, port: int, *, is_zookeeper: bool = False) -> None:
        self._target = (HOST, port)
        self._is_zookeeper = is_zookeeper
        self._guard = threading.Lock()
        self._ends: list[socket.socket] = []
        self.requests = 0
        self.round_trips = 0
        self._listener = socket.create_server((HOST, 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    def reset(self) -> None:
        """Count from 0."""
        with self._guard:
            self.requests = self.round_trips = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A thread in accept keeps a closed socket alive; shutting it down wakes the thread.
        for end in (self._listener, *self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def counted(self, requests: int, *, is_new: bool) -> None:
        """Note the requests of a client."""
        with self._guard:
            self.round_trips += is_new
            self.requests += requests if self._is_zookeeper else is_new

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=work, args=arguments, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target, timeout=10)
            except OSError:
                return
            server.settimeout(None)
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._ends += [client, server]
            link = _Link(self, client, server, is_zookeeper=self._is_zookeeper)
            for work in (link.pass_requests, link.take_answers, link.give_answers):
                self._start(work)


class _Link:
    """One connection."""

    def __init__(
        self,
        wire: CountingWire,
        client: socket.socket,
        server: socket.socket,
        *,
        is_zookeeper: bool,
    ) -> None:
        self._wire = wire
        self._client = client
        self._server = server
        self._frames = _Frames() if is_zookeeper else None
        self._answers: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        self._waits = False  # something was sent since the last answer

    def pass_requests(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._client.recv(CHUNK_BYTES):
                requests = 1 if self._frames is None else self._frames.requests_in(data)
                if requests:
                    self._wire.counted(requests, is_new=not self._waits)
                    self._waits = True
                self._server.sendall(data)
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_WR)

    def take_answers(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._server.recv(CHUNK_BYTES):
                self._answers.put((time.monotonic() + DELAY_SECONDS, data))
        self._answers.put((0.0, b""))

    def give_answers(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                due, data = self._answers.get()
                if not data:
                    break
                time.sleep(max(0.0, due - time.monotonic()))
                self._waits = False
                self._client.sendall(data)
        with contextlib.suppress(OSError):
            self._client.shutdown(socket.SHUT_WR)


class _Frames:
    """ZooKeeper's frames of one connection: four bytes of length, then the request's number."""

    def __init__(self) -> None:
        self._rest = b""
        self._is_first = True  # the handshake carries no number

    def requests_in(self, data: bytes) -> int:
        """Requests that are complete now; negative numbers are beats and the like."""
        self._rest += data
        found = 0
        while len(self._rest) >= 8:
            size = 4 + int.from_bytes(self._rest[:4], "big")
            if len(self._rest) < size:
                break
            number = int.from_bytes(self._rest[4:8], "big", signed=True)
            found += number >= 0 and not self._is_first
            self._is_first = False
            self._rest = self._rest[size:]
        return found
