"""Requests that wait for admission."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from dispatcher.admission.admission import Admission, Ticket
from dispatcher.admission.budgets import Parts
from dispatcher.admission.lanes import Waiting
from dispatcher.admission.waiting import WaitingRoom
from logboom.errors import LogboomError
from logboom.settings import AdmissionSettings
from logboom.types import PartitionId

A, B, C = PARTITIONS = [PartitionId(0), PartitionId(1), PartitionId(2)]


class Desk:
    """An admission with its waiting room; a partition takes ten records, the node twenty."""

    def __init__(self, **changes: Any) -> None:
        limits: dict[str, Any] = {
            "partition_ops": 10,
            "node_ops": 20,
            "fair_share_percent": 100,
            "queue_bypass_ms": 1000,
            **changes,
        }
        self.settings = AdmissionSettings(**limits)
        self.admission = Admission(self.settings, PARTITIONS)
        self.leads = True
        self.woken = 0
        self.room = WaitingRoom(self.settings, self.admission, may_admit=lambda: self.leads, wake=self._woken)
        self.admission.room = self.room.touch
        self.now = 100.0
        self.tickets: dict[str, Ticket] = {}
        self.order: list[str] = []
        self.failures: dict[str, LogboomError] = {}

    def _woken(self) -> None:
        self.woken += 1

    def ask(
        self,
        name: str,
        parts: Parts,
        *,
        principal: str = "p",
        wait: float = 10.0,
        timeout: float = 60.0,
        owner: Hashable = "o",
        nbytes: int = 1,
        applies: bool = True,
    ) -> Waiting | None:
        """As ``Submitting`` does."""
        found = self.room.held_back(parts, principal) or self.admission.try_admit(parts, self.now, principal)
        if isinstance(found, Ticket):
            self.room.charge(principal, nbytes)
            self._admitted(name, found)
            return None
        waiting = Waiting(
            parts=parts,
            nbytes=nbytes,
            principal=principal,
            owner=owner,
            until=self.now + wait,
            deadline=self.now + timeout,
            since=self.now,
            refusal=found,
            admitted=lambda ticket: self._admitted(name, ticket),
            failed=lambda error: self._failed(name, error),
            applies=lambda: applies,
        )
        self.room.enter(waiting)
        return waiting

    def _admitted(self, name: str, ticket: Ticket) -> None:
        assert name not in self.tickets
        assert name not in self.failures
        self.tickets[name] = ticket
        self.order.append(name)

    def _failed(self, name: str, error: LogboomError) -> None:
        assert name not in self.tickets
        assert name not in self.failures
        self.failures[name] = error

    def give_back(self, name: str) -> None:
        ticket = self.tickets.pop(name)
        for partition_id in list(ticket._parts):
            ticket.release(partition_id)
        self.room.serve(self.now)
        self.audit()

    def audit(self) -> None:
        self.admission.audit()
        self.room.audit(self.now, late_s=0.0)
