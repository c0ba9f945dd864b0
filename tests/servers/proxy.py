"""
A small TCP proxy that injects faults between a client and a real server.

A lock provider must survive faults of a network, and the only honest test is bytes
that do not arrive. The proxy listens on a free port of 127.0.0.1. The client under test connects
to it, and the test changes the fault while both sides talk::

    with FaultProxy(server_port) as proxy:
        client = connect(proxy.address)
        proxy.drop_replies()  # requests still reach the server, answers are swallowed
        ...
        proxy.heal()

Faults hold for every connection, old and new, until the next call. One thread serves all of them:
two for each of a few hundred connections used more than a core only to poll.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import socket
import struct
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

HOST = "127.0.0.1"
CHUNK_BYTES = 65_536
CONNECT_SECONDS = 5.0
# Closing with this option sends a reset, as a crashed machine's kernel does.
RESET = struct.pack("ii", 1, 0)

Result = TypeVar("Result")
_Pair = tuple[asyncio.StreamWriter, asyncio.StreamWriter]


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
        self._moves = asyncio.Event()  # not set while traffic is stopped
        self._moves.set()
        self._pairs: set[_Pair] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self.dropped_bytes = 0
        self.accepted = 0
        listener = socket.create_server((HOST, listen_port))
        self.port: int = listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="proxy", daemon=True)
        self._thread.start()
        self._server = self._in_loop(asyncio.start_server(self._connect, sock=listener))

    @property
    def address(self) -> str:
        """``host:port`` for the client under test."""
        return f"{HOST}:{self.port}"

    @property
    def open_connections(self) -> int:
        """How many connections pass through now."""
        return len(self._pairs)

    def heal(self) -> None:
        """Forward everything; swallowed bytes stay lost."""
        self._set(_Fault.NONE)

    def delay(self, seconds: float) -> None:
        """Delay answers by this many seconds."""
        self._set(_Fault.DELAY, seconds)

    def drop_replies(self) -> None:
        """Let requests reach the server, and drop its answers."""
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
        if self._thread.is_alive():
            self._in_loop(self._cut())

    def stop(self) -> None:
        """Close everything. Twice is no error."""
        if self._thread.is_alive():
            self._in_loop(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _set(self, fault: _Fault, delay_seconds: float = 0.0) -> None:
        if self._thread.is_alive():
            self._in_loop(self._change(fault, delay_seconds))

    def _serve(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    def _in_loop(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _change(self, fault: _Fault, delay_seconds: float) -> None:
        self._fault, self._delay_seconds = fault, delay_seconds
        if fault is _Fault.STALL:
            self._moves.clear()
        else:
            self._moves.set()

    async def _cut(self) -> None:
        for pair in list(self._pairs):
            self._drop(pair)

    async def _end(self) -> None:
        self._server.close()
        for pump in self._pumps:
            pump.cancel()
        await self._cut()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self._fault is _Fault.REFUSE:
            _reset(writer)
            return
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                answers, requests = await asyncio.open_connection(*self._target)
        except OSError:
            _reset(writer)
            return
        pair = (writer, requests)
        for end in pair:
            end.transport.set_write_buffer_limits(high=0)  # all is on its way before the next read
        self._pairs.add(pair)
        for source, sink, is_reply in ((reader, requests, False), (answers, writer, True)):
            pump = asyncio.create_task(self._pump(pair, source, sink, is_reply))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(
        self, pair: _Pair, source: asyncio.StreamReader, sink: asyncio.StreamWriter, is_reply: bool
    ) -> None:
        try:
            while data := await source.read(CHUNK_BYTES):
                if await self._let_pass(len(data), is_reply):
                    sink.write(data)
                    await sink.drain()
        except (OSError, _CutError):
            pass
        finally:
            self._drop(pair)

    async def _let_pass(self, size: int, is_reply: bool) -> bool:
        fault = self._fault
        if fault is _Fault.STALL:
            await self._moves.wait()
        elif fault is _Fault.DELAY and is_reply:
            await asyncio.sleep(self._delay_seconds)
        elif fault is _Fault.DROP_REPLIES and is_reply:
            self.dropped_bytes += size
            return False
        elif fault is _Fault.DROP_ONE_REPLY and is_reply:
            self._fault = _Fault.NONE
            self.dropped_bytes += size
            raise _CutError
        return True

    def _drop(self, pair: _Pair) -> None:
        self._pairs.discard(pair)
        for end in pair:
            _reset(end)


class _CutError(Exception):
    """This connection ends here."""


def _reset(end: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    end.transport.abort()
