"""Who is at the other end, and in words why a connection did not come to be, or was lost."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

from logboom.errors import LogboomError, Unauthenticated, UnknownOutcome, WrongNode, from_wire


def check_identity(address: str, node: Any, transport: asyncio.BaseTransport | None) -> None:
    """With TLS, the certificate must name the ``node`` that answered. Raises WrongNode."""
    secured = None if transport is None else transport.get_extra_info("ssl_object")
    if secured is None:
        return
    names = [value for kind, value in (secured.getpeercert() or {}).get("subjectAltName", ()) if kind == "DNS"]
    if node not in names:
        raise WrongNode(f"{address} says it is {node!r}, its certificate names {', '.join(names) or 'nobody'}")


def hint(*, heard: bool, secured: bool) -> str:
    """Why a node may have ended the connection without a word. TLS has words for it; asyncio does not send them."""
    if heard:
        return ""
    return " before it said anything; " + (
        "it may refuse our certificate, or miss one"
        if secured
        else "it may want TLS (`tls`, --tls-dir, LOGBOOM_TLS_DIR), have no room for one more, or not be the port for "
        "clients"
    )


def is_refusal(error: ssl.SSLError) -> bool:
    """One side does not accept the other, as opposed to a connection that broke."""
    return not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError)


def refused(address: str, error: ssl.SSLError) -> Unauthenticated:
    """Why a connection did not come to be, in words."""
    plain = error.reason == "WRONG_VERSION_NUMBER"
    story = f"it does not speak TLS, here at least ({error})" if plain else str(error)
    return Unauthenticated(f"TLS with {address}: {story}", address=address)


def lost(address: str, error: BaseException | None, *, welcomed: bool) -> LogboomError:
    """The loss of a connection, for somebody who waits for an answer: an error of his own."""
    if not welcomed:
        if isinstance(error, LogboomError) and error.code != "protocol":
            return from_wire(error.to_wire())  # refused before anything was asked
        if isinstance(error, ssl.SSLError) and is_refusal(error):
            return refused(address, error)
    because = f": {error}" if error else ""
    return UnknownOutcome(f"the connection to {address} was lost{because}", address=address)
