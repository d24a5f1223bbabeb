"""What an operator asks of a cluster. ``logboom.Client`` has all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, Final

from logboom.client.cluster import Cluster
from logboom.client.connection import NodeConnection
from logboom.client.reads import Reader, watermark_of
from logboom.errors import LogboomError
from logboom.types import Watermark
from logboom.wire import Frame, Kind

STATUS_S: Final = 2.0
TOKEN_BYTES: Final = 16


class Operations:
    """See the module."""

    _cluster: Cluster
    _reader: Reader
    timeout: float

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

    async def watermarks(
        self, partitions: Sequence[int] | None = None, *, node: str | None = None, timeout: float | None = None
    ) -> list[Watermark]:
        """Watermarks of the partitions (None: all) on a node."""
        frame = await self._reader.ask_node(
            Kind.WATERMARKS,
            {"partitions": list(partitions) if partitions is not None else None},
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
        self, *, state_machine: str | None = None, mode: str | None = None, timeout: float | None = None
    ) -> int:
        """A new partition on all nodes; returns its id, which no partition ever had, once it takes writes.

        ``state_machine`` and ``mode`` (`write_ahead`, `write_behind`) default to the cluster's. Keys are not routed
        to it by ``submit_by_key``: see there. Other clients find it when they are told of its id.
        """
        deadline = self._deadline(timeout)
        header: dict[str, Any] = {"action": "create_partition", "token": self._cluster.random_bytes(TOKEN_BYTES)}
        header |= {} if state_machine is None else {"state_machine": state_machine}
        header |= {} if mode is None else {"mode": mode}
        frame = await self._admin_at_leader(header, deadline)
        self._cluster.forget_partitions()
        return int(frame.header["partition"])

    async def destroy_partition(self, partition_id: int, *, timeout: float | None = None) -> None:
        """End a partition and all its data on all nodes, for good. One that was destroyed before is no error."""
        await self._admin_at_leader({"action": "destroy_partition", "partition": partition_id}, self._deadline(timeout))
        self._cluster.forget_partitions()

    async def _admin_at_leader(self, header: dict[str, Any], deadline: float) -> Frame:
        def ask(node: NodeConnection) -> Awaitable[Frame]:
            left_ms = max(1, int((deadline - self._cluster.now) * 1000))
            return node.request(Kind.ADMIN, {**header, "timeout_ms": left_ms})

        return await self._cluster.at_leader(ask, deadline=deadline)

    async def create_snapshot(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Have every node take a snapshot of everything committed so far; returns when the leader's is complete.

        ``global_index``, ``raft_index``, ``bytes`` and ``created_ms`` of the set.
        """
        deadline = self._deadline(timeout)
        header = {"action": "snapshot", "timeout_ms": max(1, int((deadline - self._cluster.now) * 1000))}
        frame = await self._cluster.at_leader(lambda node: node.request(Kind.ADMIN, header), deadline=deadline)
        return dict(frame.header["snapshot"])

    async def snapshots(self, *, node: str | None = None, timeout: float | None = None) -> dict[str, Any]:
        """What a node (None: any) has: ``sets``, the one ``under_way`` or None, and its parent log's ``base``."""
        frame = await self._reader.ask_node(
            Kind.ADMIN, {"action": "snapshots"}, node=node, deadline=self._deadline(timeout)
        )
        return dict(frame.header["snapshots"])

    def _deadline(self, timeout: float | None) -> float:
        return self._cluster.loop.time() + (self.timeout if timeout is None else timeout)
