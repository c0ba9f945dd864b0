"""
Send the messages of a group over a Unix socket that only its owner can use.

A frame is its length in four bytes, then one message. The socket's file has mode 0600 from its
creation on, and each side checks the user of its peer. So only processes of the same user, which
may write the table's files anyway, can offer or commit writes.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from pathlib import Path

from pydantic_core import PydanticSerializationError

from filegroups.group_commit.messages import (
    MESSAGE_BYTES_MAX,
    Message,
    PeerLostError,
    PeerSilentError,
    decode_message,
    encode_message,
)
from timeline.errors import SettingError, UnsafeSetupError
from timeline.ports.ports import Clock

_LENGTH = struct.Struct(">I")
_CHUNK_BYTES = 1024 * 1024
_BACKLOG = 128
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_SERVICE_KEY = "hoodoo.group.commit.service"


class SocketChannel:
    """
    One connection; the contract is ``filegroups.group_commit.messages.Channel``.

    Args:
        connection: The connected socket.
        clock: The clock of the time-outs.
        send_ms: Time-out of one send, ms.
    """

    def __init__(self, connection: socket.socket, clock: Clock, *, send_ms: int) -> None:
        self._socket = connection
        self._clock = clock
        self._send_ms = send_ms
        self._buffer = bytearray()
        self._closed = False

    def fileno(self) -> int:
        """Return the file descriptor, for a selector."""
        return self._socket.fileno()

    @property
    def closed(self) -> bool:
        """Whether this side closed the connection."""
        return self._closed

    def send(self, message: Message) -> None:
        """See ``Channel.send``."""
        try:
            data = encode_message(message)
        except (PydanticSerializationError, UnicodeEncodeError) as error:
            raise PeerLostError(f"cannot be sent: {error}") from None
        if len(data) > MESSAGE_BYTES_MAX:
            raise PeerLostError(f"the message is too long: {len(data)} bytes")
        try:
            self._socket.settimeout(self._send_ms / 1000)
            self._socket.sendall(_LENGTH.pack(len(data)) + data)
        except TimeoutError:
            raise PeerSilentError(f"accepts nothing for {self._send_ms} ms") from None
        except OSError as error:
            raise PeerLostError(f"not sent: {error}") from None

    def receive(self, wait_ms: int) -> Message:
        """See ``Channel.receive``."""
        deadline_ms = self._clock.monotonic_ms() + wait_ms
        while True:
            message = self._next()
            if message is not None:
                return message
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                raise PeerSilentError(f"silent for {wait_ms} ms")
            self._read(left_ms / 1000)

    def poll(self) -> Message | None:
        """
        Return the next complete unsolicited message (an offer), or None if it is incomplete.

        Raises:
            PeerLostError: The connection ended, or the data is no message.
        """
        self._read(0)
        return self._next()

    def close(self) -> None:
        """See ``Channel.close``."""
        self._closed = True
        self._socket.close()

    def _read(self, wait_s: float) -> None:
        try:
            self._socket.settimeout(wait_s)
            data = self._socket.recv(_CHUNK_BYTES)
        except (TimeoutError, BlockingIOError):
            return
        except OSError as error:
            raise PeerLostError(f"not received: {error}") from None
        if not data:
            raise PeerLostError("it ended the connection")
        self._buffer += data

    def _next(self) -> Message | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > MESSAGE_BYTES_MAX:
            raise PeerLostError(f"the message is too long: {length} bytes")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        data = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        return decode_message(data)


class SocketListener:
    """
    The socket at which writers connect to the committer.

    Args:
        path: File of the socket; created here and deleted by ``close``.
        clock: The clock of its connections' time-outs.
        send_ms: Time-out of one send, ms.

    Raises:
        SettingError: The socket cannot be created at the path, or the path is too long.
        UnsafeSetupError: Another committer listens at the path, or another file has its name.
    """

    def __init__(self, path: Path, clock: Clock, *, send_ms: int) -> None:
        self._path = path
        self._clock = clock
        self._send_ms = send_ms
        _make_room(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)  # the file must have no other mode at any time
        try:
            self._socket.bind(os.fspath(path))
        except OSError as error:
            self._socket.close()
            raise _unusable(path, str(error)) from None
        finally:
            os.umask(before)
        self._socket.listen(_BACKLOG)
        self._socket.setblocking(False)
        self._made = _identity(path)

    def fileno(self) -> int:
        """Return the file descriptor, for a selector."""
        return self._socket.fileno()

    def is_reachable(self) -> bool:
        """Return whether the file is still this socket: not deleted, nor another committer's."""
        return _identity(self._path) == self._made

    @property
    def path(self) -> Path:
        """The path of the socket."""
        return self._path

    def accept(self) -> SocketChannel | None:
        """Return the next connection of this user, or None."""
        try:
            connection, _ = self._socket.accept()
        except OSError:
            return None
        if _peer_user(connection) not in (None, os.geteuid()):
            connection.close()
            return None
        return SocketChannel(connection, self._clock, send_ms=self._send_ms)

    def close(self) -> None:
        """Refuse new connections; delete the file unless another committer owns it now."""
        self._socket.close()
        if self.is_reachable():
            self._path.unlink(missing_ok=True)


def connect(path: Path, clock: Clock, *, send_ms: int) -> SocketChannel | None:
    """
    Connect to the committer; return None if no process listens.

    Raises:
        UnsafeSetupError: The file is no socket, belongs to another user, or others may use it.
        PeerSilentError: The committer accepts no connection within ``send_ms``.
    """
    try:
        found = path.lstat()
    except OSError:
        return None
    if not stat.S_ISSOCK(found.st_mode):
        raise _unsafe(path, "it is not a socket")
    if found.st_uid != os.geteuid() or found.st_mode & _OTHERS:
        raise _unsafe(path, f"it is of user {found.st_uid} with mode {found.st_mode & 0o777:03o}")
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(send_ms / 1000)
        connection.connect(os.fspath(path))
    except TimeoutError:
        connection.close()
        raise PeerSilentError(f"accepts no connection for {send_ms} ms") from None
    except OSError:
        connection.close()
        return None
    if _peer_user(connection) not in (None, os.geteuid()):
        connection.close()
        raise _unsafe(path, "another user listens on it")
    return SocketChannel(connection, clock, send_ms=send_ms)


def _make_room(path: Path) -> None:
    """Delete the socket of a dead committer; raise an error if the socket is in use."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unusable(path, str(error)) from None
    if not stat.S_ISSOCK(found.st_mode):
        raise _unsafe(path, "it is not a socket")
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        probe.connect(os.fspath(path))
    except OSError as error:
        if error.errno != errno.ECONNREFUSED:
            raise _unusable(path, str(error)) from None
        path.unlink(missing_ok=True)
        return
    finally:
        probe.close()
    raise UnsafeSetupError(
        "another committer already listens on this socket: stop it first, or name another path: "
        f"{path}",
        kind="committer_running",
        path=str(path),
    )


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _peer_user(connection: socket.socket) -> int | None:
    """Return the user id of the peer; None if the system does not report it."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, option, size))
    return int(user)


def _unusable(path: Path, why: str) -> SettingError:
    return SettingError(
        "no socket can be created at this path: name a short path in a folder of your own: "
        f"{_SERVICE_KEY}={path} ({why})",
        kind="committer_socket",
        key=_SERVICE_KEY,
        value=str(path),
        layer="",
        suggestion="a short path in a folder of your own",
    )


def _unsafe(path: Path, why: str) -> UnsafeSetupError:
    return UnsafeSetupError(
        f"this is not the socket of your committer: remove it, or name another path: {path} "
        f"({why})",
        kind="committer_socket",
        path=str(path),
    )
