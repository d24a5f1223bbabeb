"""What every node has when all is over, held against what clients asked for and were told."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from chaos.checkers import exactly_once, linearizable, together
from chaos.history import Operation, of_kind
from chaos.sim.host import Host
from chaos.sim.oracle import Oracle, read_all
from chaos.sim.parameters import Parameters
from chaos.sim.seen import Seen
from chaos.transfers import MOVED, accounts_of, is_account, unbalanced
from logboom.errors import CorruptData
from partitions.log.log import PartitionLog
from partitions.log.reading import CommittedBatch
from server.node import Node

State = dict[tuple[int, str], int]
"""Counters by partition and key."""


class Afterwards:
    """``report(invariant, host, problems)`` ends the run, if there are any. ``rotten``: hosts whose files may be."""

    def __init__(
        self,
        parameters: Parameters,
        hosts: Sequence[Host],
        *,
        seen: Seen,
        oracle: Oracle,
        rotten: Collection[str],
        report: Callable[[str, Host | None, Sequence[str]], None],
    ) -> None:
        self._parameters = parameters
        self._hosts = hosts
        self._seen = seen
        self._oracle = oracle
        self._rotten = rotten
        self._report = report

    def check(self) -> None:
        """All nodes that run, and all that anybody was told."""
        operations, doomed = self._seen.history.operations, self._seen.doomed
        for host in self._hosts:
            if host.node is not None and host.may_run:
                self._check_node(host, host.node)
        lasting = [op for op in of_kind(operations, "get", "put", "cas") if op.partition not in doomed]
        self._report("LinearizableRead", None, linearizable.registers(lasting))

    def _check_node(self, host: Host, node: Node) -> None:
        state, unread, kinds = State(), set(self._seen.doomed), node.pipeline.partitioning
        for partition, machine in node.machines.items():
            kind = kinds.kind(partition).state_machine
            if kind == "kv" and partition not in unread:
                unread.add(partition)
                with self._reading(host):
                    state |= self._counters(host, partition, machine)
                    unread.discard(partition)
            with self._reading(host):
                self._check_log(host, node.logs[partition], machine, kind)
        adds = [op for op in self._adds if op.partition not in unread]
        requests = [ops for ops in self._seen.together if not any(op.partition in unread for op in ops)]
        self._report("I8", host, exactly_once.counters(adds, state))
        self._report("Atomic", host, together.whole(requests, state))

    @property
    def _adds(self) -> list[Operation]:
        return of_kind(self._seen.history.operations, "add")

    @contextmanager
    def _reading(self, host: Host) -> Iterator[None]:
        """Of one partition. Rot that nobody has read yet must not be served, and is not; the others are looked at."""
        try:
            yield
        except CorruptData as error:
            if host.name not in self._rotten:
                self._report("NoServeCorrupt", host, [str(error)])

    def _counters(self, host: Host, partition: int, machine: Any) -> State:
        rows = [row for chunk, _ in machine.scan(start=b"", end=None, limit=0, chunk=1 << 20) for row in chunk]
        numbers = [(key, value) for key, value in rows if isinstance(value, tuple)]
        opened = any(MOVED in op.key and op.outcome == "ok" and op.partition == partition for op in self._adds)
        self._report("TransfersWhole", host, unbalanced(accounts_of(numbers), opened=opened))
        return {(partition, key.decode()): int(value[0]) for key, value in numbers if not is_account(key)}

    def _check_log(self, host: Host, store: PartitionLog, machine: Any, kind: str) -> None:
        partition, first = int(store.partition_id), store.first_available_index
        batches, voids = read_all(store)
        self._report("PrefixAgreement", host, self._oracle.differing(partition, batches, voids))
        if kind != "log" or partition in self._seen.doomed:
            return
        records = [
            (index, payload.decode())
            for b in batches
            if b.records is not None
            for index, payload in enumerate(b.records.payloads(), b.header.first_index)
        ]
        mine = [op for op in of_kind(self._seen.history.operations, "append") if op.partition == partition]
        self._report("RecordsKept", host, self._kept(partition, first, batches))
        took_effect = machine._records  # noqa: SLF001 - an observer
        self._report("NoPhantom", host, exactly_once.appends(mine, records, took_effect, first=first))
        self._report("OffsetsDenseUnique", host, exactly_once.receipts(mine, records, first=first))

    def _kept(self, partition: int, first: int, batches: Sequence[CommittedBatch]) -> list[str]:
        """Records of ``log`` partitions are nowhere else: none is removed but as the settings say."""
        retain, held = self._parameters.settings.snapshot, sum(batch.header.nbytes for batch in batches)
        if first == 1 or retain.retain_log_ms or held >= retain.retain_log_bytes > 0:
            return []
        if self._seen.again and retain.retain_log_bytes:
            return []  # what a set of before had was enough then, and what came behind it was given up
        return [f"partition {partition} begins at {first} with {held} bytes; {retain.retain_log_bytes or 'all'} stay"]
