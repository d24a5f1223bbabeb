"""Which partitions a client takes there to be."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from logboom import Client, Put
from logboom.client import cluster as clusters
from logboom.client import reads
from logboom.errors import DeadlineExceeded, LogboomError, NoSuchPartition, NotLeader, PartitionDestroyed, Unavailable
from logboom.routing import partition_of
from logboom.types import GlobalLogIndex, Token
from logboom.wire import Frame, Kind
from tests.unit.logboom.fake_server import Answer, FakeNode, Session, cluster, fails, silent, until


class TestPartitions:
    """Which there are: a client that has changed them knows that a node may lag."""

    @staticmethod
    def _admin(node: FakeNode, partitions: list[int]) -> None:
        def admin(session: Session, frame: Frame) -> None:
            rows = [[p, "kv", "write_ahead"] for p in partitions]
            session.send(frame, Kind.ADMIN_REPLY, {"partitions": rows, "key_partitions": 4})

        node.answers[Kind.ADMIN] = admin

    async def test_after_a_change_of_ones_own_the_leader_is_asked(self) -> None:
        async with cluster(2) as [leader, lagging], Client(lagging.address) as boom:
            assert await boom.partitions() == [0, 1, 2, 3]
            self._admin(leader, [0, 1, 2])
            self._admin(lagging, [0, 1, 2, 3])
            await boom.destroy_partition(3)
            assert await boom.partitions() == [0, 1, 2]
            assert leader.of(Kind.ADMIN)[-1].header["linearizable"]
            await boom._cluster.connection(lagging.address)
            assert await boom.partitions() == [0, 1, 2]

    async def test_a_node_that_is_met_later_does_not_take_back_what_the_leader_said(self) -> None:
        async with cluster(2) as [leader, lagging], Client(leader.address) as boom:
            self._admin(leader, [0, 1, 2])
            await boom.partitions()
            await boom.destroy_partition(3)
            assert await boom.partitions() == [0, 1, 2]
            await boom._cluster.connection(lagging.address)
            assert await boom.partitions() == [0, 1, 2]

    async def test_a_view_of_all_has_those_that_others_have_made(self) -> None:
        """Else it would show half of a request over an old partition and a new one."""
        async with cluster() as [node], Client(node.address) as boom:
            node.features = ["log_scan"]
            assert await boom.partitions() == [0, 1, 2, 3]
            self._admin(node, [0, 1, 2, 3, 9])
            for kind in (Kind.VIEW_SCAN, Kind.LOG_SCAN):
                node.answers[kind] = silent
                feed: Any = boom.scan_view() if kind is Kind.VIEW_SCAN else boom.scan_log()
                asked = asyncio.ensure_future(anext(feed))
                await until(lambda kind=kind: node.of(kind))  # type: ignore[misc]
                asked.cancel()
                await asyncio.gather(asked, return_exceptions=True)
                assert node.of(kind)[0].header["partitions"] == [0, 1, 2, 3, 9]

    async def test_where_all_were_destroyed_there_is_nothing_to_read(self) -> None:
        """The node was asked for the logs of no partition, and said that the request was wrong."""
        async with cluster() as [node], Client(node.address) as boom:
            self._admin(node, [])
            for feed in (boom.scan_view(), boom.scan_log(), boom.scan_log(follow=True)):
                assert [each async for each in feed] == []
            assert not node.of(Kind.LOG_SCAN)

    @pytest.mark.parametrize("how", [{}, {"at_least": 7}])
    @pytest.mark.parametrize("gone", [False, True])
    async def test_a_view_of_all_is_asked_for_anew_where_others_came_or_went_meanwhile(
        self, how: dict[str, Any], *, gone: bool
    ) -> None:
        """It was of those that there had been when it was asked for, however often it was asked for again."""
        async with cluster() as [node], Client(node.address) as boom:
            self._admin(node, [0, 1, 2, 3])
            after, error = [0, 1, 2, 3, 9], Unavailable("9 was created since", retry_after=0.001)
            if gone:
                after, error = [0, 1, 2], PartitionDestroyed("3 is gone", partition_id=3)

            def meanwhile(session: Session, frame: Frame) -> None:
                self._admin(node, after)
                node.answers[Kind.VIEW_SCAN] = silent
                session.fail(frame, error)

            node.answers[Kind.VIEW_SCAN] = meanwhile
            asked = asyncio.ensure_future(anext(boom.scan_view(**how)))
            await until(lambda: len(node.of(Kind.VIEW_SCAN)) == 2)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
            assert [frame.header["partitions"] for frame in node.of(Kind.VIEW_SCAN)] == [[0, 1, 2, 3], after]
            assert all(frame.header["of_all"] for frame in node.of(Kind.VIEW_SCAN))

    async def test_one_that_is_named_and_gone_ends_a_view(self) -> None:
        async with cluster() as [node], Client(node.address) as boom:
            node.answers[Kind.VIEW_SCAN] = fails(PartitionDestroyed("3 is gone", partition_id=3))
            with pytest.raises(PartitionDestroyed):
                await anext(boom.scan_view([1, 3]))
            [asked] = node.of(Kind.VIEW_SCAN)
            assert not asked.header.get("of_all")

    @pytest.mark.parametrize("at_least", [7, "session", Token("test", GlobalLogIndex(7))])
    async def test_a_view_as_of_an_index_has_those_that_there_were_then(self, at_least: Any) -> None:
        """It had those of whichever node was asked: half of a request of one's own over an old one and a new one."""
        async with cluster(2) as [leader, lagging], Client(lagging.address) as boom:
            for node in (leader, lagging):
                node.features = ["partitions_at"]
            assert await boom.partitions() == [0, 1, 2, 3]
            boom._reader.seen(7)
            for node in (leader, lagging):
                self._admin(node, [0, 1, 2, 3, 9] if node is leader else [0, 1, 2, 3])
                knows = node.answers[Kind.ADMIN]
                behind = fails(Unavailable("not heard of", retry_after=0.001))

                def admin(session: Session, frame: Frame, knows: Any = knows, behind: Any = behind) -> None:
                    ahead = frame.header.get("at_least", 0) > 5 and session.node is lagging
                    (behind if ahead else knows)(session, frame)

                node.answers[Kind.ADMIN], node.answers[Kind.VIEW_SCAN] = admin, silent
            asked = asyncio.ensure_future(anext(boom.scan_view(at_least=at_least)))
            await until(lambda: leader.of(Kind.VIEW_SCAN) + lagging.of(Kind.VIEW_SCAN))
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
            [scan] = leader.of(Kind.VIEW_SCAN) + lagging.of(Kind.VIEW_SCAN)
            assert scan.header["partitions"] == [0, 1, 2, 3, 9]
            assert leader.of(Kind.ADMIN)[-1].header["timeout_ms"] > 1000

    @pytest.mark.parametrize("named", [False, True])
    async def test_of_a_node_that_would_overlook_the_index_it_is_not_asked(self, named: bool) -> None:
        """One of an earlier release said which it knew of, and was believed: a view left one out, of a write seen."""
        async with cluster(2) as [leader, earlier], Client(earlier.address) as boom:
            for node in (leader, earlier):
                node.features = ["partitions_at"] if node is leader else ["log_scan"]
                self._admin(node, [0, 1, 2, 3, 9] if node is leader else [0, 1, 2, 3])
                await boom._cluster.connection(node.address)
            for _ in range(4):  # whoever's turn it is
                await boom.refresh_partitions(at_least=7, node="n2" if named else None)
                assert await boom.partitions() == [0, 1, 2, 3, 9]
            assert not earlier.of(Kind.ADMIN)
            await boom.refresh_partitions(node="n2")
            assert await boom.partitions() == [0, 1, 2, 3], "no index was given"

    async def test_one_that_has_not_heard_of_it_does_not_keep_its_client_until_the_end(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It said so when there was no time left for another."""
        async with cluster(2) as [knows, lagging], Client(lagging.address) as boom:
            self._admin(knows, [0, 1, 2, 3, 9])
            waits = list[int]()

            def admin(session: Session, frame: Frame) -> None:
                waits.append(frame.header["timeout_ms"])
                late = Unavailable("not heard of", retry_after=0.001)
                asyncio.get_running_loop().call_later(waits[-1] / 1000, session.fail, frame, late)

            lagging.answers[Kind.ADMIN] = admin
            for node in (knows, lagging):
                node.features, node.answers[Kind.VIEW_SCAN] = ["partitions_at"], silent
                await boom._cluster.connection(node.address)
            monkeypatch.setattr(reads, "HEARD_S", 0.02)
            for _ in range(4):  # whoever's turn it is
                await boom.refresh_partitions(at_least=7, timeout=60.0)
            assert boom._cluster.partitions[-1][0] == 9
            assert waits
            assert max(waits) <= 20

    @pytest.mark.parametrize("nobody", [fails(NotLeader("nobody leads", leader=None)), silent], ids=["said", "silent"])
    async def test_without_a_leader_a_node_that_would_overlook_the_index_keeps_nobody_from_another(
        self, monkeypatch: pytest.MonkeyPatch, nobody: Answer
    ) -> None:
        """It had whoever leads be asked, until the end, though another node could have said it."""
        async with cluster(2) as [later, earlier], Client(earlier.address) as boom:
            self._admin(later, [0, 1, 2, 3, 9])
            knows = later.answers[Kind.ADMIN]

            def admin(session: Session, frame: Frame) -> None:
                (knows if frame.header.get("at_least") else nobody)(session, frame)

            for node in (later, earlier):
                node.features = ["partitions_at"] if node is later else ["log_scan"]
                node.answers[Kind.ADMIN] = admin
                await boom._cluster.connection(node.address)
            monkeypatch.setattr(reads, "HEARD_S", 0.02)
            for _ in range(4):  # whoever's turn it is
                await boom.refresh_partitions(at_least=7, timeout=20.0)
                assert boom._cluster.partitions[-1][0] == 9
            assert not [frame for frame in earlier.of(Kind.ADMIN) if frame.header.get("at_least")]

    @pytest.mark.parametrize("named", [False, True])
    async def test_a_scan_of_all_logs_is_of_those_that_the_leader_knows_of(self, named: bool) -> None:
        """It was of those of whichever node was asked, for good: of one that was created just before nothing came."""
        async with cluster(2) as [leader, lagging], Client(lagging.address) as boom:
            for node in (leader, lagging):
                node.features = ["log_scan"]
                node.answers[Kind.LOG_SCAN] = silent
                self._admin(node, [0, 1, 2, 3, 9] if node is leader else [0, 1, 2, 3])
            for _ in range(4):  # whoever's turn it is
                feed = boom.scan_log(follow=True, node="n2" if named else None)
                asked = asyncio.ensure_future(anext(feed))
                before = len(leader.of(Kind.LOG_SCAN) + lagging.of(Kind.LOG_SCAN))
                await until(lambda before=before: len(leader.of(Kind.LOG_SCAN) + lagging.of(Kind.LOG_SCAN)) > before)  # type: ignore[misc]
                asked.cancel()
                await asyncio.gather(asked, return_exceptions=True)
            scans = [frame.header["partitions"] for frame in leader.of(Kind.LOG_SCAN) + lagging.of(Kind.LOG_SCAN)]
            assert scans == [[0, 1, 2, 3] if named else [0, 1, 2, 3, 9]] * 4


class TestOutside:
    """A node that follows nobody: the others do not let it in, for its settings, or it has nothing yet."""

    @staticmethod
    def _apart(node: FakeNode, *, count: int) -> None:
        node.partitions, node.leader = count, None
        for kind in (Kind.SUBMIT, Kind.ADMIN):
            node.answers[kind] = fails(NotLeader("nobody leads here", leader=None))

    @pytest.mark.parametrize("connected", [False, True])
    async def test_what_it_says_of_keys_is_not_what_a_client_writes_by(self, *, connected: bool) -> None:
        """It was, for as long as the client lived: they were acknowledged where nobody else looks for them."""
        async with cluster(2, partitions=32) as [outside, leader], Client(outside.address, timeout=20) as boom:
            self._apart(outside, count=8)
            leader.leader = leader.address
            if connected:
                await boom._cluster.connection(outside.address)
            keys = [b"user/%d" % n for n in range(16)]
            wanted = {partition_of(key, 32) for key in keys}
            assert wanted != {partition_of(key, 8) for key in keys}
            receipts = await boom.submit_by_key([Put(key, b"v") for key in keys])
            assert {part.partition_id for part in receipts.parts} == wanted == leader.log.keys()
            assert await boom.key_partitions() == 32

    @pytest.mark.parametrize("count", [1, 64])
    async def test_whoever_asks_which_there_are_is_told_what_the_cluster_has(self, count: int) -> None:
        async with cluster(2) as [outside, leader], Client(outside.address, timeout=20) as boom:
            self._apart(outside, count=count)
            leader.leader = leader.address
            assert await boom.partitions() == [0, 1, 2, 3]
            assert (await boom.state_machines()).keys() == {0, 1, 2, 3}

    async def test_the_first_that_follows_a_leader_is_believed_without_being_asked(self) -> None:
        async with cluster(3) as [outside, leader, other], Client(outside.address) as boom:
            self._apart(outside, count=8)
            leader.leader = other.leader = leader.address
            for node in (outside, other):
                await boom._cluster.connection(node.address)
            assert await boom.key_partitions() == 4
            assert await boom.partitions() == [0, 1, 2, 3]
            assert not any(node.of(Kind.ADMIN) for node in (outside, leader, other))

    async def test_nor_does_it_change_what_is_known(self) -> None:
        async with cluster(2) as [leader, outside], Client(leader.address) as boom:
            self._apart(outside, count=8)
            outside.answers[Kind.ADMIN] = lambda session, frame: session.usual(frame)
            assert await boom.key_partitions() == 4
            await boom._cluster.connection(outside.address)
            assert (await boom.key_partitions(), len(await boom.partitions())) == (4, 4)
            await boom.refresh_partitions(node="n2")
            assert (await boom.key_partitions(), len(await boom.partitions())) == (4, 8), "as it was asked for"

    async def test_where_nobody_leads_it_is_believed_by_those_who_read_what_may_be_old(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(clusters, "CONNECT_S", 0.05)
        async with cluster() as [outside], Client(outside.address) as boom:
            self._apart(outside, count=8)
            assert await boom.key_partitions(linearizable=False) == 8
            assert await boom.partitions() == list(range(8))
            for ask in (boom.key_partitions(timeout=0.05), boom.submit_by_key(Put(b"k", b"v"), timeout=0.05)):
                with pytest.raises(LogboomError) as caught:
                    await ask
                assert caught.value.outcome == "not_applied"
            assert not outside.of(Kind.SUBMIT)

    @staticmethod
    def _follows(node: FakeNode, elsewhere: str) -> None:
        """By now there is a leader, whom it names."""
        node.leader = elsewhere
        sent_on = fails(NotLeader("n2 leads", leader=elsewhere))
        node.answers[Kind.ADMIN] = lambda session, frame: (
            sent_on(session, frame) if frame.header.get("linearizable") else session.usual(frame)
        )

    async def test_a_leader_out_of_reach_keeps_no_client_of_a_follower_that_it_met_before(self) -> None:
        """One that was there before the first election wrote nothing by key for as long as that connection lasted."""
        async with cluster() as [node], Client(node.address, timeout=3) as boom:
            node.leader = None
            await boom._cluster.connection(node.address)
            self._follows(node, "127.0.0.1:1")
            await boom.submit_by_key(Put(b"k", b"v"))
            assert all(frame.header["forward"] for frame in node.of(Kind.SUBMIT))
            assert len(node.of(Kind.SUBMIT)) == 1
            assert await boom.key_partitions() == 4
            assert await boom.partitions() == [0, 1, 2, 3]
            assert len(node.of(Kind.ADMIN)) == 2, "once for good"

    async def test_nor_one_that_asks_which_there_are(self) -> None:
        async with cluster() as [node], Client(node.address, timeout=3) as boom:
            node.leader = None
            await boom._cluster.connection(node.address)
            node.partitions = 5
            self._follows(node, "127.0.0.1:1")
            for _ in range(3):
                assert await boom.partitions() == [0, 1, 2, 3, 4]
            assert len(node.of(Kind.ADMIN)) == 2

    async def test_whether_one_is_there_only_whoever_leads_can_say(self) -> None:
        """A follower may not have heard of it: that it knows of none says nothing."""
        async with cluster() as [node], Client(node.address, timeout=0.5) as boom:
            self._follows(node, "127.0.0.1:1")
            node.answers[Kind.GET] = fails(NoSuchPartition("not heard of", partition_id=9, partitions=4))
            late = DeadlineExceeded  # where the last of several attempts has no answer yet
            with pytest.raises((Unavailable, late), match="nobody who leads could be asked"):
                await boom.get(9, b"k", stale=True)

    async def test_where_nobody_was_found_to_lead_it_is_not_asked_for_with_each_call(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each took two seconds, or all the time that it had."""
        async with cluster() as [outside], Client(outside.address, timeout=0.05) as boom:
            self._apart(outside, count=8)
            assert await boom.partitions() == list(range(8))
            asked = len(outside.of(Kind.ADMIN))
            assert asked
            for _ in range(3):
                assert await boom.partitions() == list(range(8))
            assert len(outside.of(Kind.ADMIN)) == asked
            now = asyncio.get_running_loop().time() + clusters.CONNECT_S
            monkeypatch.setattr(type(boom._cluster), "now", property(lambda _: now))
            outside.answers[Kind.ADMIN] = lambda session, frame: session.usual(frame)
            outside.partitions = 4
            assert await boom.partitions() == [0, 1, 2, 3], "by then somebody may lead"

    @pytest.mark.parametrize("at_least", [0, 7])
    async def test_what_it_is_asked_for_a_view_of_counts_for_that_view_alone(self, at_least: int) -> None:
        """It counted for good, as if whoever leads had said it. An index that it would overlook changes nothing."""
        async with cluster(2) as [leader, outside], Client(leader.address) as boom:
            self._apart(outside, count=8)
            outside.answers[Kind.ADMIN] = lambda session, frame: session.usual(frame)
            leader.answers[Kind.VIEW_SCAN] = outside.answers[Kind.VIEW_SCAN] = silent
            assert await boom.partitions() == [0, 1, 2, 3]
            asked = asyncio.ensure_future(anext(boom.scan_view(at_least=at_least, node="n2")))
            await until(lambda: outside.of(Kind.VIEW_SCAN))
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
            assert outside.of(Kind.VIEW_SCAN)[0].header["partitions"] == list(range(8))
            assert await boom.partitions() == [0, 1, 2, 3]

    async def test_of_an_index_that_it_has_come_to_it_is_believed(self) -> None:
        """It heard of no leader when it was met, and has heard since: whoever leads is asked for nothing."""
        async with cluster(2) as [leader, other], Client(other.address) as boom:
            other.leader, other.features = None, ["partitions_at"]
            await boom._cluster.connection(other.address)
            other.answers[Kind.ADMIN] = lambda session, frame: session.usual(frame)
            other.partitions, asked = 5, len(leader.of(Kind.ADMIN))
            await boom._cluster.refresh_partitions(await boom._cluster.at("n2"), at_least=7)
            assert await boom.partitions() == [0, 1, 2, 3, 4]
            assert len(leader.of(Kind.ADMIN)) == asked
