"""Ports of this machine's loopback for nodes that are started on it, and come back to them."""

from __future__ import annotations

import os
import random
import socket
import sys
import weakref
from collections.abc import Iterable
from pathlib import Path

PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
LASTING_MIN = 10_240
LASTING_COUNT_MIN = 4_096
"""Fewer are left to others: clusters that are started at the same time choose among them."""


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that were free a moment ago.

    None of those that the system gives to outgoing connections, where it says which: a node that is started again
    would find its port taken by any of them.
    """
    sockets = _bound(count)
    try:
        return [_port(each) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _bound(count: int) -> list[socket.socket]:
    lasting = _lasting_ports()
    candidates = random.SystemRandom().sample(lasting, len(lasting))
    sockets: list[socket.socket] = []
    try:
        while len(sockets) < count:
            sockets.append(socket.socket())
            while True:
                port = candidates.pop() if candidates else 0
                try:
                    sockets[-1].bind(("127.0.0.1", port))
                    break
                except OSError:  # somebody has it
                    if not port:
                        raise
    except OSError:
        for each in sockets:
            each.close()
        raise
    return sockets


def _port(bound: socket.socket) -> int:
    return int(bound.getsockname()[1])


class Places:
    """Ports that whoever looks for free ones passes over, though no node listens there yet, or just now.

    Linux lets a node listen all the same: both it and who holds the port say that they share it.
    """

    def __init__(self) -> None:
        self._held: list[int] = []
        weakref.finalize(self, _close, self._held)

    def take(self, count: int) -> list[int]:
        """Free ones."""
        sockets = _bound(count)
        ports = [_port(each) for each in sockets]
        for each in sockets:
            self._hold(each)
        return ports

    def keep(self, ports: Iterable[int]) -> None:
        """Those that were taken before, as far as nobody listens there."""
        for port in ports:
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                sock.close()
            else:
                self._hold(sock)

    def _hold(self, bound: socket.socket) -> None:
        if sys.platform == "linux":
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._held.append(bound.detach())
        else:
            bound.close()


def _close(files: list[int]) -> None:
    for each in files:
        os.close(each)


def _lasting_ports() -> range:
    """Those below the system's range; none, if that is not known or leaves few."""
    try:
        lowest = int(PORT_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):  # not Linux
        lowest = 0
    return range(LASTING_MIN, lowest) if lowest >= LASTING_MIN + LASTING_COUNT_MIN else range(0)
