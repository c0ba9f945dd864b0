"""
A small TCP proxy that injects faults between a client and a real server.

A lock provider must survive what a network does, and the only honest way to try is bytes
that do not arrive. The proxy listens on a free port of 127.0.0.1; the client under test is
pointed at it, and the test changes the fault while both sides are talking::

    with FaultProxy(server_port) as proxy:
        client = connect(proxy.address)
        proxy.drop_replies()  # requests still reach the server, answers are swallowed
        ...
        proxy.heal()

Faults hold for every connection, old and new, until the next call.
"""

from __future__ import annotations

import contextlib
import enum
import socket
import struct
import threading
import time
from types import TracebackType
from typing import Self

__all__ = ["FaultProxy"]

HOST = "127.0.0.1"
CHUNK_BYTES = 65_536
POLL_SECONDS = 0.05
# Closing with this option sends a reset, as a crashed machine's kernel does.
RESET = struct.pack("ii", 1, 0)


class _Fault(enum.Enum):
    NONE = "none"
    DELAY = "delay"
    DROP_REPLIES = "drop replies"
    DROP_ONE_REPLY = "drop one reply, then cut"
    STALL = "stall"
    REFUSE = "refuse"


class FaultProxy:
    """
    The wire between one client side and one server.

    Args:
        port: The server's port on 127.0.0.1.
        listen_port: A fixed port of its own; a free one by default.
    """

    def __init__(self, port: int, *, listen_port: int = 0) -> None:
        self._target = (HOST, port)
        self._fault = _Fault.NONE
        self._delay_seconds = 0.0
        self._guard = threading.Lock()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._stopped = threading.Event()
        self.dropped_bytes = 0
        self.accepted = 0
        self._listener = socket.create_server((HOST, listen_port))
        self._listener.settimeout(POLL_SECONDS)
        self.port: int = self._listener.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self._acceptor.start()

    @property
    def address(self) -> str:
        """``host:port`` for the client under test."""
        return f"{HOST}:{self.port}"

    @property
    def open_connections(self) -> int:
        """How many connections pass through now."""
        with self._guard:
            return len(self._pairs)

    def heal(self) -> None:
        """Pass everything on; what was swallowed stays lost."""
        self._set(_Fault.NONE)

    def delay(self, seconds: float) -> None:
        """Answers come this much later."""
        self._delay_seconds = seconds
        self._set(_Fault.DELAY)

    def drop_replies(self) -> None:
        """Requests reach the server, answers never come back."""
        self._set(_Fault.DROP_REPLIES)

    def drop_one_reply(self) -> None:
        """The next answer is swallowed and its connection reset; then all is well again."""
        self._set(_Fault.DROP_ONE_REPLY)

    def stall(self) -> None:
        """Connections stay open, nothing passes in either direction until healed."""
        self._set(_Fault.STALL)

    def refuse(self) -> None:
        """Reset every connection, and each new one at once: the server is gone."""
        self._set(_Fault.REFUSE)
        self.cut()

    def cut(self) -> None:
        """Reset the open connections now; new ones follow the fault that is set."""
        with self._guard:
            pairs = list(self._pairs)
        for pair in pairs:
            self._drop(pair)

    def stop(self) -> None:
        """Close everything. Twice is no error."""
        self._stopped.set()
        self._acceptor.join()
        self._listener.close()
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _set(self, fault: _Fault) -> None:
        with self._guard:
            self._fault = fault

    def _accept(self) -> None:
        while not self._stopped.is_set():
            try:
                client, _ = self._listener.accept()
            except (TimeoutError, ConnectionAbortedError):
                continue
            self.accepted += 1
            if self._fault is _Fault.REFUSE:
                _reset(client)
                continue
            try:
                server = socket.create_connection(self._target, timeout=5)
                pair = (client, server)
                for end in pair:
                    end.settimeout(POLL_SECONDS)
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError:
                _reset(client)
                continue
            with self._guard:
                self._pairs.add(pair)
            for source, sink, is_reply in ((client, server, False), (server, client, True)):
                threading.Thread(
                    target=self._pump, args=(pair, source, sink, is_reply), daemon=True
                ).start()

    def _pump(
        self,
        pair: tuple[socket.socket, socket.socket],
        source: socket.socket,
        sink: socket.socket,
        is_reply: bool,
    ) -> None:
        try:
            while not self._stopped.is_set():
                try:
                    data = source.recv(CHUNK_BYTES)
                except TimeoutError:
                    continue
                if not data:
                    break
                if not self._let_pass(len(data), is_reply):
                    continue
                self._pass_on(data, sink)
        except (OSError, _CutError):
            pass
        self._drop(pair)

    def _pass_on(self, data: bytes, sink: socket.socket) -> None:
        """
        All of it, in pieces.

        The time limit of an end stays as it is: the other direction reads from it at the same
        time, and a read without a limit would keep a connection open that was cut.
        """
        left = memoryview(data)
        while left and not self._stopped.is_set():
            with contextlib.suppress(TimeoutError):
                left = left[sink.send(left) :]

    def _let_pass(self, size: int, is_reply: bool) -> bool:
        with self._guard:
            fault = self._fault
            if is_reply and fault is _Fault.DROP_ONE_REPLY:
                self._fault = _Fault.NONE
        if fault is _Fault.STALL:
            while self._fault is _Fault.STALL and not self._stopped.is_set():
                time.sleep(POLL_SECONDS)
        elif fault is _Fault.DELAY and is_reply:
            self._stopped.wait(self._delay_seconds)
        elif fault is _Fault.DROP_REPLIES and is_reply:
            self.dropped_bytes += size
            return False
        elif fault is _Fault.DROP_ONE_REPLY and is_reply:
            self.dropped_bytes += size
            raise _CutError
        return True

    def _drop(self, pair: tuple[socket.socket, socket.socket]) -> None:
        with self._guard:
            self._pairs.discard(pair)
        for end in pair:
            _reset(end)


class _CutError(Exception):
    """This connection ends here."""


def _reset(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    with contextlib.suppress(OSError):
        end.close()
