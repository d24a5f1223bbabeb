"""What is stepped over was declared void; and a batch that nobody asks about any more is taken again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from chaos.sim.void_watch import LOOKS_MAX, VoidWatch
from logboom.types import DIGEST_BYTES, NO_DIGEST, GlobalLogIndex, PartitionId, PartitionLogIndex, Term
from partitions.log.committed import Committed
from partitions.log.holes import hole_ref
from raftlog.entries.voids import Void

DIGEST = b"d" * DIGEST_BYTES


def backend(*, voided: bool, sealed: bool = False) -> Any:
    committed = Committed()
    committed.append(hole_ref(1, 2, DIGEST, NO_DIGEST, Term(1)), 1)
    if voided:
        committed.void(2, DIGEST)
    log = SimpleNamespace(_committed=committed, is_lost=committed.is_lost)
    return SimpleNamespace(logs={PartitionId(0): log}, payloads=SimpleNamespace(_sealed={DIGEST} if sealed else set()))


def host(name: str, *, asks: bool = False) -> Any:
    seals = SimpleNamespace(_asked={DIGEST: 1} if asks else {})
    pipeline = SimpleNamespace(raft=SimpleNamespace(repair=SimpleNamespace(seals=seals)))
    return SimpleNamespace(name=name, starts=1, node=SimpleNamespace(pipeline=pipeline))


def watch(*hosts: Any) -> tuple[VoidWatch, list[str]]:
    found: list[str] = []
    return VoidWatch(hosts, set(), lambda invariant, _: found.append(invariant)), found


VOID = Void(PartitionId(0), PartitionLogIndex(1), PartitionLogIndex(2), DIGEST, GlobalLogIndex(1), 0, False)


@pytest.mark.parametrize(
    ("voided", "declared", "wrong"),
    [(True, False, ["VoidTrue"]), (True, True, []), (False, False, [])],
    ids=["by nobody", "declared", "lost"],
)
def test_what_counts_as_void_was_declared_void(voided: bool, declared: bool, wrong: list[str]) -> None:
    looks, found = watch()
    if declared:
        looks.declared(VOID)
    looks.check_logs(host("n1"), backend(voided=voided))
    assert found == wrong


def test_a_batch_that_nobody_asks_about_is_not_refused_for_long() -> None:
    one = host("n1")
    looks, found = watch(one)
    for _ in range(LOOKS_MAX - 1):
        looks.check_seals(one, backend(voided=False, sealed=True))
    assert not found
    looks.check_seals(one, backend(voided=False, sealed=True))
    assert found == ["SealEnds"]


def test_nor_is_it_when_all_is_quiet() -> None:
    one = host("n1")
    looks, found = watch(one)
    looks.check_seals(one, backend(voided=False, sealed=True), idle=True)
    assert found == ["SealEnds"]


@pytest.mark.parametrize("asks", [True, False], ids=["asked for", "void"])
def test_it_may_be_while_somebody_asks_and_once_it_is_void(asks: bool) -> None:
    one = host("n1")
    looks, found = watch(one, host("n2", asks=asks))
    if not asks:
        looks.declared(VOID)
    looks.check_seals(one, backend(voided=False, sealed=True), idle=True)
    assert not found


def test_another_life_of_a_node_begins_anew() -> None:
    one = host("n1")
    looks, found = watch(one)
    for _ in range(2 * LOOKS_MAX):
        one.starts += 1
        looks.check_seals(one, backend(voided=False, sealed=True))
    assert not found
