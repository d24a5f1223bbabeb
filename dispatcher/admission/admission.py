"""Admission: one atomic step over every gate, before anything is written. Sans-io.

A gate has budgets of operations, bytes and batches of requests that are admitted and not yet applied, a bound on the
age of the oldest of them, and what signals say; there is one per partition and one for the node. Principals, and
partitions of the node, share what is scarce. Rates, and the pace, bound what is admitted a second. Refused means:
nothing taken, nothing written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from dispatcher.admission.budgets import Gate, Limits, Parts, Refusal, Taken, Use, Verdict
from dispatcher.admission.pace import Pace
from dispatcher.admission.rates import Rates
from dispatcher.admission.reservations import NEWCOMER, Amounts, Reservation, with_shares
from logboom.errors import LogboomError, Overloaded, PartitionFrozen, RecordTooLarge, from_wire
from logboom.settings import AdmissionSettings
from logboom.types import PartitionId
from ports.invariant import InvariantViolated, invariant

OPERATOR: Final = "operator"
SIGNALS: Final = "signals"
NOTHING: Final = Use()
"""What a principal that holds nothing has taken."""
GOLDEN: Final = 0.618033988749895
JITTER: Final = 0.25


class Ticket:
    """What one request took. Every part is given back exactly once: applied, lost or failed."""

    __slots__ = ("_admission", "_parts", "timed_since")

    def __init__(self, admission: Admission, parts: dict[PartitionId, Taken], timed_since: float | None) -> None:
        self._admission = admission
        self._parts = parts
        self.timed_since = timed_since
        """When it was admitted, if ``Admission.pace`` wants to know when it is committed."""

    def release(self, partition_id: PartitionId) -> None:
        """Give one partition's part back."""
        taken = self._parts.pop(partition_id, None)
        if taken is None:
            raise InvariantViolated(f"budget of partition {partition_id} given back twice")
        self._admission.give_back(taken)


class Admission:
    """All gates of one node: a request takes of every one of them, or of none."""

    def __init__(self, settings: AdmissionSettings, partitions: Sequence[PartitionId]) -> None:
        self._settings = settings
        self._limits = Limits(
            scope="partition",
            operations=settings.partition_ops,
            nbytes=settings.partition_bytes,
            batches=settings.partition_batches,
            age_s=settings.partition_age_ms / 1000,
        )
        self._gates = {p: Gate(self._limits, p) for p in partitions}
        of_node = Limits(
            scope="node",
            operations=settings.node_ops,
            nbytes=settings.node_bytes,
            batches=settings.node_batches,
            age_s=settings.node_age_ms / 1000,
        )
        self._node = Gate(of_node, None)
        self._shares: dict[tuple[str, PartitionId | None], Use] = {}
        """By principal and partition (None: the node); only of those who hold something."""
        share = settings.fair_share_percent / 100
        self._factor = share / (1 - share) if share < 1 else 0.0
        self._rates = Rates(settings)
        self.pace = Pace(settings)
        self._frozen: dict[PartitionId, dict[str, str]] = {}
        """By whom, and why."""
        self.room: Callable[[PartitionId], None] = lambda _: None
        """Told of every part that is given back."""
        self.barred: Callable[[PartitionId], None] = lambda _: None
        """Told of every partition that is frozen."""
        self.admitted = 0
        self.refused = 0
        self.reserved = 0
        """Reservations begun."""
        self.refused_by: dict[str, int] = {}
        """By the gate's name."""

    def admit(self, parts: Parts, now: float, principal: str = "") -> Ticket:
        """Take all at once, for a principal ('': whose share nobody counts).

        Raises Overloaded naming the gate, PartitionFrozen, RecordTooLarge for what could never fit, or a signal's own.
        """
        found = self.try_admit(parts, now, principal)
        if isinstance(found, Ticket):
            return found
        raise self.refuse(found)

    def try_admit(self, parts: Parts, now: float, principal: str = "", number: int = NEWCOMER) -> Ticket | Refusal:
        """The same, for whoever would wait, or waits (as ``number``). Raises PartitionFrozen and RecordTooLarge."""
        refusal = self._refusal(parts, now, principal, number)
        if refusal is not None:
            return refusal
        node, shares = self._node, self._shares
        taken: dict[PartitionId, Taken] = {}
        for partition_id, operations, nbytes in parts:
            part = taken[partition_id] = Taken(partition_id, operations, nbytes, principal, now)
            gate = self._gates[partition_id]
            for use in (gate, node):
                use.take(operations, nbytes, 1)
                use.admitted(part)
            if principal:
                for key in ((principal, partition_id), (principal, None)):
                    share = shares.get(key)
                    if share is None:
                        share = shares[key] = Use()
                    share.take(operations, nbytes, 1)
        if not self._rates.unbounded:
            self._rates.take(parts, now, principal)
        self.admitted += 1
        timed = self.pace.on and self.pace.take(parts, now, principal)
        return Ticket(self, taken, now if timed else None)

    def _refusal(self, parts: Parts, now: float, principal: str, number: int) -> Refusal | None:
        node, limits, most = self._node, self._limits, self._node.limits
        operations = nbytes = 0
        for partition_id, each_operations, each_bytes in parts:
            if partition_id in self._frozen:
                raise self.is_frozen(partition_id)
            if each_operations > limits.operations or each_bytes > limits.nbytes or limits.batches < 1:
                self._check_size(limits, partition_id, each_operations, each_bytes, 1)
            operations += each_operations
            nbytes += each_bytes
        if operations > most.operations or nbytes > most.nbytes or len(parts) > most.batches:
            self._check_size(most, None, operations, nbytes, len(parts))
        for partition_id, each_operations, each_bytes in parts:
            gate, wanted = self._gates[partition_id], (each_operations, each_bytes, 1)
            refusal = gate.refusal(wanted, now, number)
            if refusal is None:
                refusal = self._partition_share(gate, wanted, now, number)
            if refusal is None:
                refusal = self._own_share(gate, principal, wanted, now, number)
            if refusal is not None:
                return refusal
        whole = (operations, nbytes, len(parts))
        refusal = node.refusal(whole, now, number) or self._own_share(node, principal, whole, now, number)
        if refusal is None and not self._rates.unbounded:
            refusal = self._rates.refusal(parts, now, principal)
        if refusal is None and self.pace.on:
            refusal = self.pace.refusal(parts, now, principal)
        return refusal

    def _own_share(self, gate: Gate, principal: str, wanted: Amounts, now: float, number: int) -> Refusal | None:
        """Who has nothing yet leaves something for the next, too; only of what nobody has, he may have all."""
        use = self._shares.get((principal, gate.partition_id))
        if not self._factor or (use is None and not (principal and gate.batches)):
            return None
        refusal = gate.share(NOTHING if use is None else use, wanted, self._factor, now, number)
        return refusal if refusal is None or use is None else refusal._replace(share_of=principal)

    def _partition_share(self, gate: Gate, wanted: Amounts, now: float, number: int) -> Refusal | None:
        """A hot partition does not take the whole node; to whoever waits it is this partition that is full."""
        if not self._factor or not gate.batches:
            return None
        refusal = self._node.share(gate, wanted, self._factor, now, number)
        return None if refusal is None else refusal._replace(partition_id=gate.partition_id)

    @staticmethod
    def _check_size(limits: Limits, partition_id: PartitionId | None, *wanted: int) -> None:
        for unit, size, limit in zip(("ops", "bytes", "batches"), wanted, limits[1:4], strict=True):
            if size > limit:
                raise RecordTooLarge(
                    f"{_where(partition_id)}: one request wants {size} of {limits.scope}_{unit}, the whole budget is "
                    f"{limit}",
                    size=size,
                    limit=limit,
                )

    # -- keeping back

    def reserve(self, refusal: Refusal, parts: Parts, number: int) -> bool:
        """Keep half of all that is given back at the gate that refuses a waiting request for it, until it fits.

        Or for one that came before it. False: something else than a budget is in its way.
        """
        if not refusal.is_budget:
            return False
        gate = self.gate(refusal.partition_id)
        if gate.reservation is None or gate.reservation.number > number:
            rows = [part for part in parts if refusal.partition_id in (None, part[0])]
            sizes = sum(row[1] for row in rows), sum(row[2] for row in rows), len(rows)
            gate.reservation = Reservation(number, with_shares(sizes, self._factor, gate.limits[1:4]))
            self.reserved += 1
        return True

    def keep_no_more(self, partition_id: PartitionId | None, number: int) -> None:
        """That gate is to keep nothing back for this request any more."""
        gate = self._node if partition_id is None else self._gates.get(partition_id)
        if gate is not None and gate.reservation is not None and gate.reservation.number == number:
            gate.reservation = None

    def reservations(self) -> Iterator[tuple[PartitionId | None, int]]:
        """Gates that keep something back, and for which request. Looks at each."""
        for gate in (self._node, *self._gates.values()):
            if gate.reservation is not None:
                yield gate.partition_id, gate.reservation.number

    # -- refusing

    def refuse(self, refusal: Refusal) -> LogboomError:
        """Counted; the error to answer with."""
        self.refused += 1
        self.refused_by[refusal.gate] = self.refused_by.get(refusal.gate, 0) + 1
        gate = self._node if refusal.partition_id is None else self._gates.get(refusal.partition_id)
        verdict = None if gate is None else gate.verdict
        if verdict is not None and verdict.refusal is not None and verdict.signal == refusal.gate:
            return from_wire(verdict.refusal)  # one of its own for each
        used, maximum = round(refusal.used, 3), refusal.maximum
        if refusal.is_own_rate:
            what = f"your own requests reach {refusal.gate}"
        elif refusal.share_of is not None:
            what = f"your own requests have their share of {refusal.gate}"
        elif refusal.partition_id is not None and refusal.gate.startswith("node"):
            what = f"it has its share of {refusal.gate}"
        else:
            what = f"{refusal.gate} is used up"
        what = f"{what} ({used} of {maximum})"
        if verdict is not None and verdict.signal == refusal.gate:
            what = f"the signal {refusal.gate} withholds {used:.0%} of its budgets"
        return Overloaded(
            f"{_where(refusal.partition_id)}: {what}; try again",
            partition_id=refusal.partition_id,
            limit=refusal.gate,
            maximum=maximum,
            used=used,
            retry_after=self.retry_after(refusal.retry_after),
        )

    def retry_after(self, seconds: float) -> float:
        """Within the settings' bounds, and a little more: refused together, they do not come back together."""
        least = self._settings.retry_after_ms / 1000
        most = max(least, self._settings.retry_after_max_ms / 1000)
        # Multiples of the golden ratio fill the interval more evenly than chance does.
        jitter = JITTER * (self.refused * GOLDEN % 1)
        return min(max(seconds, least), most) * (1 + jitter)

    def is_frozen(self, partition_id: PartitionId) -> PartitionFrozen:
        """The error to answer with."""
        why = "; ".join(filter(None, self._frozen[partition_id].values()))
        because = f" ({why})" if why else ""
        return PartitionFrozen(
            f"partition {partition_id} is frozen{because}: it takes no writes", partition_id=partition_id
        )

    # -- giving back

    def give_back(self, taken: Taken) -> None:
        """A ticket's part; call through the ticket."""
        invariant(not taken.given, "budget of partition {} given back twice", taken.partition_id)
        taken.given = True
        partition_id, principal = taken.partition_id, taken.principal
        for gate in (self._gates[partition_id], self._node):
            gate.take(-taken.operations, -taken.nbytes, -1)
            gate.drained(taken)
            invariant(gate.whole, "budget of partition {} below zero, or not whole", partition_id)
        if principal:
            for key in ((principal, partition_id), (principal, None)):
                share = self._shares[key]
                share.take(-taken.operations, -taken.nbytes, -1)
                invariant(share.whole, "share of {} below zero, or not whole", key)
                if not share.batches:
                    del self._shares[key]
        self.room(partition_id)

    def audit(self) -> None:
        """The ledger: what is used is what outstanding tickets hold, gate by gate and share by share. Looks at each."""
        gates: dict[PartitionId | None, list[Taken]] = {None: self._node.outstanding()}
        shares: dict[tuple[str, PartitionId | None], list[Taken]] = {}
        for taken in gates[None]:
            gates.setdefault(taken.partition_id, []).append(taken)
            if taken.principal:
                shares.setdefault((taken.principal, taken.partition_id), []).append(taken)
                shares.setdefault((taken.principal, None), []).append(taken)
        for gate in (self._node, *self._gates.values()):
            self._same(gate.partition_id, gate, gates.pop(gate.partition_id, []))
            invariant(gate.keeps_what_is_free, "more is kept than is free at {}", gate.partition_id)
        invariant(not gates, "tickets of partitions that are gone: {}", list(gates))
        invariant(shares.keys() == self._shares.keys(), "shares {}, tickets {}", list(self._shares), list(shares))
        for name, use in self._shares.items():
            self._same(name, use, shares[name])
        self._rates.audit()
        self.pace.audit()

    @staticmethod
    def _same(key: object, use: Use, held: Sequence[Taken]) -> None:
        sums = sum(each.operations for each in held), sum(each.nbytes for each in held), len(held)
        found = use.operations, use.nbytes, use.batches
        invariant(sums == found, "budget of {}: {} used, tickets hold {}", key, found, sums)

    # -- partitions

    def add(self, partition_id: PartitionId) -> None:
        """A new partition."""
        self._gates[partition_id] = Gate(self._limits, partition_id)

    def remove(self, partition_id: PartitionId) -> None:
        """It is gone, and everything that it took has been given back."""
        gate = self._gates.pop(partition_id)
        invariant(not gate.batches, "partition {} is gone with {} operations admitted", partition_id, gate.operations)
        self._frozen.pop(partition_id, None)
        self._rates.remove(partition_id)

    def freeze(self, partition_id: PartitionId, reason: str = "", *, by: str = OPERATOR) -> None:
        """Admit nothing for this partition, and say why; whoever waits is told at once."""
        self._frozen.setdefault(partition_id, {})[by] = reason
        self.barred(partition_id)

    def thaw(self, partition_id: PartitionId, *, by: str = OPERATOR) -> None:
        """Admit again, unless somebody else has frozen it, too."""
        frozen = self._frozen.get(partition_id, {})
        frozen.pop(by, None)
        if not frozen:
            self._frozen.pop(partition_id, None)

    def frozen(self, partition_id: PartitionId) -> bool:
        """Is it?"""
        return partition_id in self._frozen

    # -- what is seen of it

    def used(self, partition_id: PartitionId | None = None) -> tuple[int, int]:
        """Operations and bytes in use, of a partition or the node."""
        gate = self.gate(partition_id)
        return gate.operations, gate.nbytes

    def gate(self, partition_id: PartitionId | None = None) -> Gate:
        """The gate of a partition or, without one, of the node."""
        return self._node if partition_id is None else self._gates[partition_id]

    def delay(self, parts: Parts, now: float) -> float:
        """Seconds that whatever is applied next there has been on its way."""
        return max(self._gates[partition_id].age(now) for partition_id, _, _ in parts)

    def judge(self, partition_id: PartitionId | None, verdict: Verdict | None, *, source: str = SIGNALS) -> bool:
        """What a source says of a partition (None: the node) now; True: less is withheld than before.

        The worst of all sources counts. Who eases something tells those who wait: ``Submitting.eased``.
        """
        gate = self._node if partition_id is None else self._gates.get(partition_id)
        return gate is not None and gate.judge(source, verdict)  # None: it went while they were asked

    @property
    def withheld(self) -> Verdict | None:
        """How much of the node's budgets is withheld, and why; None: nothing."""
        return self._node.verdict

    def judged(self) -> Iterator[tuple[PartitionId | None, Verdict]]:
        """Partitions (None: the node) of whose budgets something is withheld now, and why."""
        for gate in (self._node, *self._gates.values()):
            if gate.verdict is not None:
                yield gate.partition_id, gate.verdict


def _where(partition_id: PartitionId | None) -> str:
    return "the node" if partition_id is None else f"partition {partition_id}"
