"""What an operator asks of a cluster. ``logboom.Client`` has all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from logboom.client.attempts import seconds
from logboom.client.cluster import Cluster
from logboom.client.parts import partition_ids
from logboom.client.reads import AtLeast, Reader, watermark_of
from logboom.errors import InvalidRequest, LogboomError, ProtocolError
from logboom.types import PARTITION_SETTINGS, Ack, GlobalLogIndex, PartitionLogIndex, Watermark
from logboom.wire import Frame, Kind

STATUS_S: Final = 2.0
TOKEN_BYTES: Final = 16


class LogPiece(NamedTuple):
    """Committed batches of one partition, as they are on the disk, and where its log begins there."""

    batches: list[tuple[GlobalLogIndex, memoryview]]
    first: PartitionLogIndex
    """First index that the node still has."""
    before: bytes
    """Digest of the batch in front of that."""
    void: PartitionLogIndex = PartitionLogIndex(0)
    """Last index of what stands in the place that was asked for, if that was declared void; ``first`` is behind it."""
    void_global: GlobalLogIndex = GlobalLogIndex(0)
    """Its global index."""
    lost: PartitionLogIndex = PartitionLogIndex(0)
    """The same of what nobody had, as far as that node knows, and was not declared void."""


def log_piece_of(frame: Frame) -> LogPiece:
    """What is in a LOG_PIECE. Raises ProtocolError."""
    header, batches, at = frame.header, [], 0
    rows, first, before = header.get("rows"), header.get("first"), header.get("before")
    if not isinstance(rows, list) or type(first) is not int or first < 1 or not isinstance(before, bytes):
        raise ProtocolError("LOG_PIECE: bad header")
    for row in rows:
        if not isinstance(row, list) or len(row) != 2 or any(type(n) is not int or n < 1 for n in row):
            raise ProtocolError("LOG_PIECE: bad row")
        global_index, length = row
        batches.append((GlobalLogIndex(global_index), frame.body[at : at + length]))
        at += length
    if at != len(frame.body):
        raise ProtocolError(f"LOG_PIECE: rows of {at} bytes, a body of {len(frame.body)}")
    void, lost = _gap_in(header, "void"), _gap_in(header, "lost")
    if lost[1]:
        first, before = lost[1] + 1, lost[2]
    ends = PartitionLogIndex(void[1]), GlobalLogIndex(void[3]), PartitionLogIndex(lost[1])
    return LogPiece(batches, PartitionLogIndex(first), before, *ends)


def _gap_in(header: Mapping[str, Any], what: str) -> tuple[int, int, bytes, int]:
    said = header.get(what, [0, 0, b"", 0])
    if (
        not isinstance(said, list)
        or len(said) != 4
        or any(type(n) is not int or n < 0 for n in (said[0], said[1], said[3]))
        or not isinstance(said[2], bytes)
    ):
        raise ProtocolError(f"LOG_PIECE: bad {what}")
    return said[0], said[1], said[2], said[3]


def _chosen(ack: str | None, linearizable: bool | None) -> dict[str, Any]:  # noqa: FBT001 - None, too
    """What is said of them. Raises InvalidRequest for what neither can be."""
    if ack is not None and ack not in list(Ack):
        raise InvalidRequest(f"ack must be committed, durable or applied, not {ack!r:.40}")
    if linearizable is not None and type(linearizable) is not bool:
        raise InvalidRequest(f"linearizable must be True or False, not {linearizable!r:.40}")
    said = {"ack": None if ack is None else str(ack), "linearizable": linearizable}
    return {name: value for name, value in said.items() if value is not None}


class Operations:
    """See the module."""

    _cluster: Cluster
    _reader: Reader
    timeout: float

    @property
    def superseded(self) -> bool:
        """The cluster was restored since: what this client has seen is of another history, and a new one is needed."""
        return self._cluster.superseded

    @property
    def has_met(self) -> bool:
        """A node has answered, and said which cluster this is."""
        return self._cluster.id is not None

    async def key_partitions(self, *, linearizable: bool = True, timeout: float | None = None) -> int:
        """Keys are routed over the partitions from 0 to this, exclusive (``logboom.routing``).

        As a node says that leads, or follows whoever does; without ``linearizable`` as any does, where nobody leads.
        """
        deadline = self._deadline(timeout)
        await (self._cluster.know_keys if linearizable else self._cluster.know_partitions)(deadline=deadline)
        return self._cluster.key_partitions

    async def members(self) -> dict[str, str]:
        """Node ids and their client addresses, as of half a minute ago at most while any node is connected."""
        await self._cluster.acquaint(deadline=self._deadline(None))
        return dict(self._cluster.members)

    async def status(
        self, *, node: str | None = None, digests: bool = False, timeout: float | None = None
    ) -> dict[str, Any]:
        """What a node (an id or address; None: any) says of itself and the cluster."""
        frame = await self._reader.ask_node(
            Kind.STATUS, {"digests": digests}, node=node, deadline=self._deadline(timeout)
        )
        return frame.header

    async def status_all(
        self, *, digests: bool = False, timeout: float | None = None
    ) -> dict[str, dict[str, Any] | LogboomError]:
        """What every member says, by node id; for those that do not answer within 2 s, the error.

        Raises Unavailable when there is nobody to tell who the members are.
        """
        deadline = self._deadline(timeout)
        members = await self._cluster.retry(self._cluster.any, lambda _: self._cluster.everyone(), deadline=deadline)

        async def ask(node: str) -> dict[str, Any] | LogboomError:
            patience = self._cluster.now + (self.timeout if digests else STATUS_S)
            try:
                return (
                    await self._reader.ask_node(
                        Kind.STATUS, {"digests": digests}, node=node, deadline=min(deadline, patience)
                    )
                ).header
            except LogboomError as error:
                return error

        answers = await asyncio.gather(*map(ask, members))
        return dict(sorted(zip(members, answers, strict=True)))

    async def refresh_partitions(
        self, *, at_least: AtLeast = None, node: str | None = None, timeout: float | None = None
    ) -> None:
        """Learn anew which partitions there are, for ``partitions`` and whatever else is of all of them.

        Those that there were before this call, as the leader knows it; or at the index ``at_least``; or as ``node``,
        which may be behind, knows it. A client that does not ask knows what it was told when it connected.
        """
        await self._reader.refresh_partitions(at_least, node, deadline=self._deadline(timeout))

    async def watermarks(
        self,
        partitions: Sequence[int] | None = None,
        *,
        node: str | None = None,
        linearizable: bool = False,
        timeout: float | None = None,
    ) -> list[Watermark]:
        """Watermarks of the partitions (None: all) on a node.

        ``linearizable``: on whoever leads, with all that was committed, and all partitions that were, before this call.
        """
        wanted = None if partitions is None else partition_ids(partitions)
        if linearizable:
            if node is not None:
                raise InvalidRequest("node= does not go with linearizable")
            marks = await self._reader.watermarks_now(wanted, deadline=self._deadline(timeout))
            return [marks[p] for p in sorted(marks if wanted is None else wanted)]
        frame = await self._reader.ask_node(
            Kind.WATERMARKS,
            {"partitions": wanted},
            node=node,
            deadline=self._deadline(timeout),
        )
        return [watermark_of(row) for row in frame.header["watermarks"]]

    async def admin(self, action: str, partition_id: int, *, node: str, timeout: float | None = None) -> str:
        """``pause``, ``resume``, ``freeze`` or ``thaw`` a partition on one node; returns its state."""
        frame = await self._reader.ask_node(
            Kind.ADMIN,
            {"action": action, "partition": partition_id},
            node=node,
            deadline=self._deadline(timeout),
        )
        return str(frame.header["state"])

    async def create_partition(
        self,
        *,
        state_machine: str | None = None,
        mode: str | None = None,
        ack: str | None = None,
        linearizable: bool | None = None,
        timeout: float | None = None,
    ) -> int:
        """A new partition on all nodes; returns its id, which no partition ever had, once it takes writes.

        ``state_machine``, ``mode`` (`write_ahead`, `write_behind`), ``ack`` and ``linearizable`` (``set_partition``
        says what they are) default to the cluster's. Keys are not routed to it by ``submit_by_key``: see there. Other
        clients find it when they are told of its id.
        """
        deadline = self._deadline(timeout)
        header: dict[str, Any] = {"action": "create_partition", "token": self._cluster.random_bytes(TOKEN_BYTES)}
        header |= {} if state_machine is None else {"state_machine": state_machine}
        header |= {} if mode is None else {"mode": mode}
        chosen = _chosen(ack, linearizable)
        needs = PARTITION_SETTINGS if chosen else ""
        made = await self._reader.admin_at_leader({**header, **chosen}, deadline=deadline, needs=needs)
        self._cluster.forget_partitions()
        return int(made["partition"])

    async def set_partition(
        self,
        partition_id: int,
        *,
        ack: str | None = None,
        linearizable: bool | None = None,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """Set how writes to a partition are answered, on all nodes, whatever their configuration says; None: as it was.

        ``ack``: what the answer to a request that does not say waits for (`committed`, `durable`, `applied`);
        ``linearizable``: writes are answered after they are applied, whatever the request says. Returns what counts
        then, ``partition``, ``ack`` and ``linearizable``, once it counts for whatever is asked for from now on.

        Raises IncompatibleVersion while there is a member of a release that does not know of it.
        """
        chosen = _chosen(ack, linearizable)
        if not chosen:
            raise InvalidRequest("say what to set: ack=, linearizable= or both")
        token = self._cluster.random_bytes(TOKEN_BYTES)
        header = {"action": "set_partition", "partition": partition_id, "token": token, **chosen}
        deadline = self._deadline(timeout)
        said = await self._reader.admin_at_leader(header, deadline=deadline, needs=PARTITION_SETTINGS)
        return {name: said[name] for name in ("partition", "ack", "linearizable")}

    async def destroy_partition(self, partition_id: int, *, timeout: float | None = None) -> None:
        """End a partition and all its data on all nodes, for good. One that was destroyed before is no error."""
        header = {"action": "destroy_partition", "partition": partition_id}
        await self._reader.admin_at_leader(header, deadline=self._deadline(timeout))
        self._cluster.forget_partitions()

    async def void_batch(
        self, partition_id: int, index: int, *, yes: bool = False, timeout: float | None = None
    ) -> dict[str, Any]:
        """Declare the batch that holds record ``index``, and that no member has any more, void: it counts as nothing.

        Without ``yes`` only says what that would be: ``first_index``, ``last_index``, ``digest``, ``global_index``,
        ``applied``, what every member ``said``, and whether it is ``void``. Raises InvalidRequest if somebody has it.
        """
        header = {"action": "void_batch", "partition": partition_id, "index": index, "yes": yes}
        said = await self._reader.admin_at_leader(header, deadline=self._deadline(timeout))
        return dict(said["void"])

    async def create_snapshot(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Have every node take a snapshot of everything committed so far; returns when the leader's is complete.

        ``global_index``, ``raft_index``, ``bytes`` and ``created_ms`` of the set; ``new`` is False where nothing was
        written since the last one: it is that, and knows of no partition that was created or destroyed since.
        """
        made = await self._reader.admin_at_leader({"action": "snapshot"}, deadline=self._deadline(timeout))
        return dict(made["snapshot"])

    async def snapshots(self, *, node: str | None = None, timeout: float | None = None) -> dict[str, Any]:
        """What a node (None: any) has: ``sets``, the one ``under_way`` or None, and its parent log's ``base``."""
        frame = await self._reader.ask_node(
            Kind.ADMIN, {"action": "snapshots"}, node=node, deadline=self._deadline(timeout)
        )
        return dict(frame.header["snapshots"])

    async def read_snapshot(
        self,
        global_index: int,
        file: Literal["meta", "states"],
        offset: int,
        *,
        node: str,
        timeout: float | None = None,
    ) -> tuple[int, memoryview]:
        """A piece of a snapshot set's file on one node: the size of the file, and bytes from ``offset`` on.

        About a megabyte; none at the end. For half a minute after it the node keeps the set, and what follows it, but
        in all no longer than its `snapshot.hold_ms` beyond the set's time.
        Raises IndexCompacted when the node does not have the set (any more).
        """
        header = {"global_index": global_index, "file": file, "offset": offset}
        deadline = self._deadline(timeout)
        frame = await self._reader.ask_node(Kind.SNAPSHOT_READ, header, node=node, deadline=deadline)
        total = frame.header.get("total")
        if type(total) is not int or not 0 <= offset + len(frame.body) <= max(total, offset):
            raise ProtocolError("SNAPSHOT_PIECE: bad field total")
        return total, frame.body

    async def read_log(
        self,
        global_index: int,
        partition_id: int,
        *,
        after: int,
        through: int,
        node: str,
        timeout: float | None = None,
    ) -> LogPiece:
        """Committed batches behind index ``after`` that end at ``through`` or before, of one node's log, in order.

        About a megabyte; at least one, unless the node does not have the first any more, or not yet. ``global_index``:
        of the snapshot set that is copied with them, as in ``read_snapshot``.
        """
        header = {"global_index": global_index, "partition": partition_id, "after": after, "through": through}
        deadline = self._deadline(timeout)
        return log_piece_of(await self._reader.ask_node(Kind.LOG_READ, header, node=node, deadline=deadline))

    async def member_list(self, *, node: str | None = None, timeout: float | None = None) -> dict[str, Any]:
        """Who the members are, as a node (None: whoever leads) knows it.

        ``members``, ``removed``, ``leader``, and ``raft_index`` of the log; that of a member that lags is below. Only a
        leader knows theirs: others say None.
        """
        deadline = self._deadline(timeout)
        if node is None:
            return await self._at_leader({"action": "members", "leader": True}, deadline)
        return dict(
            (await self._reader.ask_node(Kind.ADMIN, {"action": "members"}, node=node, deadline=deadline)).header[
                "members"
            ]
        )

    async def add_member(
        self,
        node: str,
        *,
        peer_address: str,
        client_address: str,
        learner: bool = False,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """Take a node in. It votes as soon as it has caught up, a ``learner`` only after ``promote_member``.

        Returns what ``member_list`` does, when that is committed. Raises InvalidRequest for what can never be.
        """
        header = {"action": "member_add", "id": node, "peer_address": peer_address, "client_address": client_address}
        return await self._at_leader({**header, "learner": learner}, self._deadline(timeout))

    async def update_member(
        self,
        node: str,
        *,
        peer_address: str | None = None,
        client_address: str | None = None,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """Have a member elsewhere: what is None stays, and so do its id, its vote and its data.

        Returns what ``member_list`` does, when that is committed. Raises InvalidRequest for what can never be, and
        where the leader is of a release that does not know of it.
        """
        said = {"peer_address": peer_address, "client_address": client_address}
        addresses = {name: address for name, address in said.items() if address is not None}
        deadline = self._deadline(timeout)
        # Who leads? A node of a release before refuses what it does not know for good, though it may not lead.
        await self._at_leader({"action": "members", "leader": True}, deadline)
        return await self._at_leader({"action": "member_update", "id": node, **addresses}, deadline)

    async def promote_member(self, node: str, *, timeout: float | None = None) -> dict[str, Any]:
        """Have a learner made a voter as soon as it has caught up; returns when that is ordered."""
        return await self._at_leader({"action": "member_promote", "id": node}, self._deadline(timeout))

    async def remove_member(self, node: str, *, timeout: float | None = None) -> dict[str, Any]:
        """Remove a member for good: its id is not used again. A leader hands leadership over before."""
        return await self._at_leader({"action": "member_remove", "id": node}, self._deadline(timeout))

    async def transfer(self, to: str | None = None, *, timeout: float | None = None) -> dict[str, Any]:
        """Have another node lead (None: whichever is nearest). Nothing that was admitted before is lost."""
        return await self._at_leader({"action": "transfer", "id": to}, self._deadline(timeout))

    async def _at_leader(self, header: dict[str, Any], deadline: float) -> dict[str, Any]:
        said = dict((await self._reader.admin_at_leader(header, deadline=deadline))["members"])
        self._cluster.told_members(said)  # addresses may be others: those that it knew may all be gone by the next time
        return said

    def _deadline(self, timeout: float | None) -> float:
        return self._cluster.begin() + seconds(self.timeout if timeout is None else timeout)
