"""Who a client is, by the names in its certificate.

The places that it takes (barriers, streams, scans) are counted for all names together, its rates and its share of
budgets for the first alone. With one name, as ``logboom certs --clients`` makes them, the two are the same.
"""

from __future__ import annotations

from ports.net import Connection


def all_names(connection: Connection) -> str:
    """Whose places are taken, and who an operator is, in the log; empty: it has no name."""
    return ", ".join(sorted(connection.peer_identities))


def first_name(connection: Connection) -> str | None:
    """Whose rates and shares count; None: it has no name."""
    return min(connection.peer_identities, default=None)
