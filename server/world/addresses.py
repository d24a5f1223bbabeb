"""Where to connect to, and the names by which whoever is there goes."""

from __future__ import annotations

from typing import Any, Final

from logboom.errors import ConfigError

KINDS_OF_NAMES: Final = ("DNS", "URI", "IP Address")
"""In a certificate; a node may be called by its address."""


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port``. Raises ConfigError."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else -1
    if not host or "\0" in host or not 0 <= number <= 65535:
        raise ConfigError(f"{address!r} is not host:port", path="address")
    try:
        host.encode("idna")
    except UnicodeError as error:
        raise ConfigError(f"{address!r}: {error}", path="address") from error
    return host, number


def names_in(certificate: Any) -> frozenset[str]:
    """Those that the other side goes by; none without a certificate."""
    if not certificate:
        return frozenset()
    return frozenset(value for kind, value in certificate.get("subjectAltName", ()) if kind in KINDS_OF_NAMES)
