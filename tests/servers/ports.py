"""
Ports for servers that are started later, which no other process takes meanwhile.

The kernel may give a port that it picked to any outgoing connection too. A server that binds it a
second later, or again after a restart, may find it taken. These ports are outside that range, and
every process of the tests searches them from a start of its own.
"""

from __future__ import annotations

import itertools
import os
import socket
from pathlib import Path

HOST = "127.0.0.1"
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
RANGE_USUAL = (32_768, 60_999)
LOWEST, HIGHEST = 15_000, 65_535
ENOUGH = 2_000
PORTS_A_PROCESS = 97  # neighbours by process id start so far from each other


def free_port() -> int:
    """A free TCP port of this machine; another one each time."""
    for _ in range(len(_PLACES)):
        port = _PLACES[next(_NUMBERS) % len(_PLACES)]
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise OSError("every port for servers is taken")


def _places() -> range:
    """The ports below or above those of outgoing connections; where these are all, any."""
    try:
        first, last = map(int, RANGE.read_text().split())
    except OSError:
        first, last = RANGE_USUAL
    if first - LOWEST >= ENOUGH:
        return range(LOWEST, first)
    if HIGHEST - last >= ENOUGH:
        return range(last + 1, HIGHEST + 1)
    return range(LOWEST, HIGHEST + 1)


_PLACES = _places()
_NUMBERS = itertools.count(os.getpid() * PORTS_A_PROCESS)
