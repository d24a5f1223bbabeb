"""PySyncObj 0.3.17 as a consensus engine, made safe.

Stock PySyncObj truncates without a conflict check, rewinds and pipelines wrongly, counts
replies of older terms, counts votes twice and itself before any sync, and unpickles what
comes off the wire. ``Engine`` overrides what is unsafe (name-mangled methods, hence the
exact version and source hash) and keeps the rest: roles, terms, elections, the log.

One class, since it overrides one class, in four rooms that build on each other: ``stock`` (what
is replaced wholesale), ``quorums``, ``elections``, ``replication``; ``engine`` is what others see.
"""

from raftlog.engine.engine import Engine
from raftlog.engine.stock import check_version

__all__ = ["Engine", "check_version"]
