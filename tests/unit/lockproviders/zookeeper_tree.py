"""A ZooKeeper in memory and the kazoo client of one user, with chosen faults."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from kazoo import exceptions as refusals

Node = namedtuple("Node", ("data", "czxid", "session"))
Event = namedtuple("Event", ("type", "path"))


class Result:
    """The answer to one request, available at once."""

    def __init__(self, value: Any = None, exception: Exception | None = None) -> None:
        self.value = value
        self.exception = exception

    def get(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "every request has a time limit"
        if self.exception is not None:
            raise self.exception
        return self.value

    def rawlink(self, callback: Callable[[Result], None]) -> None:
        callback(self)


class Tree:
    """The state of the servers."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.numbers: dict[str, int] = {}
        self.zxid = 100
        self.watches: dict[str, set[Callable[[Event], None]]] = {}
        self.clients: list[Kazoo] = []
        self.accepts = True
        self.readable = True
        self.has_root = True  # of the connect string
        self.made_private: list[str] = []

    def connect(self, settings: Any) -> Kazoo:
        """Replace ``_kazoo_client``."""
        self.clients.append(Kazoo(self, settings))
        return self.clients[-1]

    def names(self, folder: str) -> list[str]:
        return sorted(p.rpartition("/")[2] for p in self.nodes if p.rpartition("/")[0] == folder)

    def add(self, path: str, data: bytes = b"", session: object = None) -> str:
        self.zxid += 1
        self.nodes[path] = Node(data, self.zxid, session)
        return path

    def add_numbered(self, prefix: str, data: bytes, session: object) -> str:
        folder = prefix.rpartition("/")[0]
        number = self.numbers.get(folder, 0)
        self.numbers[folder] = number + 1
        return self.add(f"{prefix}{number:010d}", data, session)

    def remove(self, path: str) -> None:
        if self.nodes.pop(path, None) is not None:
            for watch in self.watches.pop(path, set()):
                watch(Event("DELETED", path))

    def end_session(self, session: object) -> None:
        for path in [path for path, node in self.nodes.items() if node.session is session]:
            self.remove(path)


class Kazoo:
    """The part of ``KazooClient`` that a session uses."""

    def __init__(self, tree: Tree, settings: Any) -> None:
        self.tree = tree
        self.settings = settings
        self.connected = False
        self.client_state = "CONNECTING"
        self.stopped = self.closed = False
        self.asked: list[str] = []
        self.faults: dict[str, list[str]] = {}  # "lost" before, "unanswered" after, "denied"
        self.handler = SimpleNamespace(spawn=self._spawn)
        self._receive: Callable[[str], None] = lambda state: None

    def add_listener(self, hear: Callable[[str], None]) -> None:
        self._receive = hear

    def start_async(self) -> None:
        if self.tree.accepts:
            self.reconnect()

    def stop(self) -> None:
        self.stopped = True
        self.tree.end_session(self)

    def close(self) -> None:
        self.closed = True

    def reconnect(self) -> None:
        self.connected, self.client_state = True, "CONNECTED"
        self._receive("CONNECTED")

    def suspend(self) -> None:
        self.connected, self.client_state = False, "CONNECTING"
        self._receive("SUSPENDED")
        for watches in self.tree.watches.values():
            for watch in [w for w in watches if w.__self__ and self._owns(w)]:
                watches.discard(watch)
                watch(Event("NONE", None))

    def expire(self) -> None:
        self.connected, self.client_state = False, "EXPIRED_SESSION"
        self.tree.end_session(self)
        self._receive("LOST")

    def create_async(
        self,
        path: str,
        data: bytes,
        ephemeral: bool = False,
        sequence: bool = False,
        include_data: bool = False,
    ) -> Result:
        def work() -> Any:
            folder = path.rpartition("/")[0]
            if not self.tree.readable:
                raise refusals.NoAuthError
            if folder and folder not in self.tree.nodes:
                raise refusals.NoNodeError
            if not sequence:
                if path in self.tree.nodes:
                    raise refusals.NodeExistsError
                return self.tree.add(path, data)
            made = self.tree.add_numbered(path, data, self if ephemeral else None)
            return (made, self.tree.nodes[made]) if include_data else made

        return self._ask("create", work)

    def get_children_async(self, path: str) -> Result:
        def work() -> list[str]:
            if path not in self.tree.nodes:
                raise refusals.NoNodeError
            return self.tree.names(path)

        return self._ask("children", work)

    def get_async(self, path: str, watch: Callable[[Event], None] | None = None) -> Result:
        def work() -> tuple[bytes, Node]:
            if path not in self.tree.nodes:
                raise refusals.NoNodeError
            if watch is not None:
                self.tree.watches.setdefault(path, set()).add(watch)
            return self.tree.nodes[path].data, self.tree.nodes[path]

        return self._ask("get", work)

    def delete_async(self, path: str) -> Result:
        def work() -> bool:
            if path not in self.tree.nodes:
                raise refusals.NoNodeError
            self.tree.remove(path)
            return True

        return self._ask("delete", work)

    def _ask(self, what: str, work: Callable[[], Any]) -> Result:
        self.asked.append(what)
        waiting = self.faults.get(what)
        fault = waiting.pop(0) if waiting else None
        if fault == "lost" or not self.connected:
            return Result(exception=refusals.ConnectionLoss())
        if fault == "denied":
            return Result(exception=refusals.NoAuthError())
        try:
            if not self.tree.has_root:
                raise refusals.NoNodeError
            value = work()
        except refusals.KazooException as error:
            return Result(exception=error)
        if fault == "unanswered":
            return Result(exception=refusals.ConnectionLoss())
        return Result(value)

    def _owns(self, watch: Any) -> bool:
        owner = watch.__self__
        session = getattr(owner, "session", None) or getattr(owner, "_session", None)
        return session is not None and session._client is self

    def _spawn(self, work: Callable[[], None]) -> Any:
        if work.__name__ == "_shut":  # the tests run the checks of the watchdog
            work()
        return SimpleNamespace(join=lambda seconds: None, is_alive=lambda: False)
