"""Which right a request needs, and in which partitions: the one place that decides what a client may ask.

It is the node that a client speaks to that judges; what it passes on to the leader is not judged again. Streams are
judged when they begin: when the rules change, whoever has other rights then is cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from dispatcher.requests.requests import field_of
from logboom.access import Grants, Right
from logboom.errors import InvalidRequest, LogboomError, PartitionDestroyed, ProtocolError, Unavailable
from logboom.types import CURSORS_TOKEN, DurabilityMode, PartitionId
from logboom.wire import Frame, Kind, shown

RIGHTS: Final = {
    Kind.HELLO: Right.STATUS,
    Kind.PING: Right.STATUS,
    Kind.CANCEL: Right.STATUS,
    Kind.CREDIT: Right.STATUS,
    Kind.STATUS: Right.STATUS,
    Kind.WATERMARKS: Right.STATUS,
    Kind.WATCH: Right.STATUS,
    Kind.BARRIER: Right.STATUS,
    Kind.INDEX_AT: Right.STATUS,
    Kind.GET: Right.READ,
    Kind.SCAN: Right.READ,
    Kind.VIEW_SCAN: Right.READ,
    Kind.TAIL: Right.READ,
    Kind.LOG_SCAN: Right.READ,
    Kind.DATA_READ: Right.READ,
    Kind.SUBMIT: Right.WRITE,
    Kind.SNAPSHOT_READ: Right.ADMIN,
    Kind.LOG_READ: Right.ADMIN,
    Kind.ADMIN: Right.ADMIN,
}
"""The right that each request needs. STATUS with digests reads all states; for ADMIN see ``ACTIONS``."""
ACTIONS: Final = {
    "members": Right.STATUS,
    "partitions": Right.STATUS,
    "snapshots": Right.STATUS,
    "pause": Right.ADMIN,
    "resume": Right.ADMIN,
    "freeze": Right.ADMIN,
    "thaw": Right.ADMIN,
    "destroy_partition": Right.ADMIN,
    "void_batch": Right.ADMIN,
    "create_partition": Right.ADMIN,
    "set_partition": Right.ADMIN,
    "snapshot": Right.ADMIN,
    "member_add": Right.ADMIN,
    "member_update": Right.ADMIN,
    "member_remove": Right.ADMIN,
    "member_promote": Right.ADMIN,
    "transfer": Right.ADMIN,
}
"""The right that each action of ADMIN needs."""
OF_ONE: Final = ("pause", "resume", "freeze", "thaw", "destroy_partition", "set_partition", "void_batch")
"""Those about one partition, where the right is needed; for the others it is for the cluster as a whole."""


class Node(Protocol):
    """The node that is asked."""

    def serves(self, partition_id: int) -> bool:
        """There is such a partition here."""
        ...

    def cursors_partition(self) -> PartitionId | None:
        """The one that keeps cursors; None: there is none."""
        ...

    def admits(self) -> bool:
        """It leads: of what it has not heard there is none."""
        ...

    def missing(self, partition_id: int) -> LogboomError:
        """Why there is no such partition here."""
        ...


def check(frame: Frame, grants: Grants, node: Node) -> None:
    """Raises PermissionDenied, ProtocolError for what is no request, and InvalidRequest for one that cannot be read."""
    kind, header = frame.kind, frame.header
    right = RIGHTS.get(kind)
    if right is None:
        raise ProtocolError(f"{kind.name} is not a request")
    if kind is Kind.STATUS and header.get("digests"):
        right = Right.READ
    elif kind is Kind.ADMIN:
        if _makes_room_for_cursors(header) and grants.write.cursors:
            return
        right = _right_of(header.get("action"))
    where = grants.where(right)
    if where.everywhere:
        return
    partitions = _about(kind, header)
    if partitions is None:
        raise grants.denied(right)
    cursors = node.cursors_partition()
    for partition in partitions:
        # By its name alone: a range may have been written before it was made, with room for others.
        known = partition == cursors or node.serves(partition)
        if where.cursors if partition == cursors else known and where.has(partition):
            continue
        if not known and (where.cursors or node.admits()):
            raise node.missing(partition)  # it may be that one, and this node has not heard of it; or there is none
        if not known and where.has(partition):  # as long as it is not that one
            why = node.missing(partition)
            if isinstance(why, PartitionDestroyed | Unavailable):  # it was one, or this node says itself what it lacks
                raise why
            raise Unavailable(f"partition {partition} is not known here yet: ask another node", retry_after=0.1)
        raise grants.denied(right, partition)


def _right_of(action: Any) -> Right:
    """What nobody knows is nobody's but an administrator's to try."""
    return ACTIONS.get(action, Right.ADMIN) if isinstance(action, str) else Right.ADMIN


def _makes_room_for_cursors(header: Mapping[str, Any]) -> bool:
    """The first commit of a cursor creates the partition that keeps them, as it has to be."""
    return (
        header.get("action") == "create_partition"
        and header.get("token") == CURSORS_TOKEN
        and header.get("state_machine") == "kv"
        and header.get("mode") == DurabilityMode.WRITE_AHEAD
        and not header.keys() & {"ack", "linearizable"}
    )


def _about(kind: Kind, header: Mapping[str, Any]) -> Sequence[int] | None:
    """The partitions that a request is about; None: all, or the cluster as a whole. Raises InvalidRequest."""
    if kind is Kind.SUBMIT:
        return _firsts(field_of(header, "parts", list))
    if kind is Kind.DATA_READ:
        return _firsts(field_of(header, "rows", list))
    if kind in (Kind.GET, Kind.SCAN, Kind.TAIL, Kind.LOG_READ):
        return (field_of(header, "partition", int),)
    if kind in (Kind.VIEW_SCAN, Kind.LOG_SCAN) and header.get("partitions") is not None:
        return _numbers(header["partitions"])
    if kind is Kind.ADMIN and header.get("action") in OF_ONE:
        return (field_of(header, "partition", int),)
    return None


def _firsts(rows: list[Any]) -> list[int]:
    if not all(isinstance(row, list) and row for row in rows):
        raise InvalidRequest("a row begins with its partition")
    return _numbers([row[0] for row in rows])


def _numbers(wanted: Any) -> list[int]:
    if not isinstance(wanted, list) or any(type(each) is not int for each in wanted):
        raise InvalidRequest(f"partitions are numbers, not {shown(wanted)}")
    return wanted
