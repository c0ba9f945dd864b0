"""
Java's lock queue in ZooKeeper as pure rules: names, order, texts and paths.

Exclusion with Java depends on these few rules (Curator's lock recipe as Hudi ships it). All
children of the lock's node are one queue, ordered by the part after the last ``lock-`` of their
name, and the first one holds the lock. A client with another order, like kazoo's own recipe,
excludes no other client.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from timeline.errors import SettingError

MARK = "lock-"
OWNER_FIELD = ";owner="
APPLICATION_FIELD = "application_id="
APPLICATION_CHARACTERS_MAX = 100
DEFAULT_PORT = "2181"


def node_prefix(unique: str) -> str:
    """Return the name of a new child without the ten digits that the server appends."""
    return f"_c_{unique}-{MARK}"


def _order_key(name: str) -> str:
    _, mark, rest = name.rpartition(MARK)
    return rest if mark else name


def queue_order(names: Iterable[str]) -> list[str]:
    """Return the queue in order; nodes of other engines count, as they do for Java."""
    return sorted(names, key=lambda name: (_order_key(name), name))


def own_nodes(names: Iterable[str], unique: str) -> list[str]:
    """Return our own children in order; two if a create was repeated."""
    prefix = node_prefix(unique)
    return queue_order(name for name in names if name.startswith(prefix))


def predecessor(names: Iterable[str], own: str) -> str | None:
    """Return the node that ``own`` waits for, or None if ``own`` has the lock."""
    order = queue_order(names)
    place = order.index(own)
    return order[place - 1] if place else None


def node_text(application: str, owner_text: str) -> bytes:
    """Return the text of a queue node: Java's field first, then our owner text."""
    shown = application[:APPLICATION_CHARACTERS_MAX].replace(";", ",")
    return f"{APPLICATION_FIELD}{shown}{OWNER_FIELD}{owner_text}".encode()


def owner_in(data: bytes) -> str | None:
    """Return our owner text, else the text of another engine's node; None if empty."""
    text = data.decode("utf-8", "replace")
    _, mark, owner = text.partition(OWNER_FIELD)
    if mark and _is_object(owner):
        return owner
    return text or None


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def lock_path(base_path: str, lock_key: str, *, key: str) -> str:
    """
    Return the lock's node; refuse what Java's client would refuse or ours would rewrite.

    Args:
        base_path: Parent node; begins with a slash.
        lock_key: Its child; may itself have several levels.
        key: The property to name in the error.

    Raises:
        SettingError: No absolute path, an empty or relative part, or a control character.
    """
    path = f"{base_path}/{lock_key}"
    parts = path.split("/")
    wrong = (
        not path.startswith("/")
        or not all(parts[1:])
        or not {".", ".."}.isdisjoint(parts)
        or not path.isprintable()
    )
    if wrong:
        raise SettingError(
            "the lock's node must be an absolute path without empty or relative parts, and "
            f"without a slash at its end; correct {key}, which makes it {path[:200]!a}",
            kind="setting_value",
            key=key,
            value=path[:200],
            suggestion="a base path like /hudi/locks and a lock key like the table's name",
        )
    return path


def split_hosts(url: str, *, key: str) -> tuple[tuple[str, ...], str]:
    """
    Return the servers of a connect string with ports, sorted, and its root or an empty text.

    Raises:
        SettingError: No server, or a part that is not ``host:port``.
    """
    hosts, slash, root = url.partition("/")
    servers = []
    for part in hosts.split(","):
        host, port = _host_and_port(part.strip())
        if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
            raise SettingError(
                "ZooKeeper's servers have the form host:port,host:port,...; correct "
                f"{key}={url[:200]!a}",
                kind="setting_value",
                key=key,
                value=url[:200],
                suggestion="zk1:2181,zk2:2181,zk3:2181",
            )
        servers.append(f"{host.lower()}:{int(port)}")
    if slash:
        lock_path(f"/{root}", "x", key=key)
    return tuple(sorted(set(servers))), slash + root


def _host_and_port(text: str) -> tuple[str, str]:
    if text.startswith("["):  # an IPv6 address
        host, _, rest = text.partition("]")
        return f"{host}]", rest.removeprefix(":") or DEFAULT_PORT
    host, colon, port = text.partition(":")
    if not host.isprintable() or " " in host or "@" in host:
        return "", port
    return host, port if colon else DEFAULT_PORT


def hosts_identity(servers: Iterable[str], root: str, path: str) -> str:
    """Return the lock's name, equal for every spelling of one ensemble and node (REG-1)."""
    return f"zookeeper:{','.join(sorted(servers))}{root}{path}"
