"""Which partitions a query is told the ends of, and which it goes on without."""

import pytest

from logboom.errors import DeadlineExceeded, NotLeader, Unavailable, UnknownOutcome
from logboom.spark.ends import LeftOut, marks
from logboom.spark.options import read_options
from tests.unit.spark.read_world import Local
from tests.unit.spark.shares_world import Client, E


@pytest.fixture
def session():
    found = Local(Client())
    yield found
    found.end()


@pytest.mark.parametrize("why", ["opening", "behind", "stand"])
@pytest.mark.parametrize("node", [{}, {"node": "n1"}])
def test_only_a_stream_goes_on_without_one_that_cannot_be_shown(session, node, why, caplog):
    """One that stands still, of a leader that was started since, ended every stream that read it beside others."""
    setattr(session.client, why, {1})
    asked = read_options({**E, **node})
    shown = marks(asked, session, left_out=LeftOut.HIDDEN)
    assert [each.partition_id for each in shown] == [0, 2], "and not that of the cursors"
    assert "2 of 3 partitions are read, without 1: this node is still recovering" in caplog.text
    if why == "opening":
        assert [each.partition_id for each in marks(asked, session)] == [0, 1, 2]
        return
    with pytest.raises(Unavailable):
        marks(asked, session)


@pytest.mark.parametrize("state", ["frozen", "retrying", "withdrawn"])
def test_nor_without_one_that_is_not_as_far_as_before_and_does_not_run(session, state):
    """Whoever leads names it, since it does not run, and shows it no more than one that does: the stream ended."""
    session.client.behind, session.client.states = {1}, {1: state}
    shown = marks(read_options(E), session, left_out=LeftOut.HIDDEN)
    assert [each.partition_id for each in shown] == [0, 2]
    with pytest.raises(Unavailable):
        marks(read_options(E), session, left_out=LeftOut.STILL)


@pytest.mark.parametrize("left_out", [LeftOut.STILL, LeftOut.HIDDEN])
def test_one_that_can_be_shown_and_takes_long_is_not_left_out(session, left_out):
    """Half a second was too short for whoever is far away, and what a paused partition has was passed over."""
    session.client.opening, session.client.states, session.client.slow = {0}, {1: "paused"}, {1: 0.6}
    shown = marks(read_options(E), session, left_out=left_out)
    assert 1 in [each.partition_id for each in shown]
    assert session.client.limits[-2:] == [0.5, 1.0]


def test_one_that_is_refused_where_each_answer_takes_long_is_left_out_at_once(session):
    """The last of its attempts was under way when the time was over."""
    session.client.stand, session.client.slow = {1}, {1: 0.6}
    shown = marks(read_options(E), session, left_out=LeftOut.STILL)
    assert [each.partition_id for each in shown] == [0, 2]
    assert session.client.limits == [2.0, None, 0.5]


@pytest.mark.parametrize("error", [DeadlineExceeded, NotLeader, UnknownOutcome])
def test_one_of_which_nothing_is_heard_is_not_passed_over_without_a_word(session, error):
    class Silent(Client):
        async def watermarks(self, partitions, *, linearizable=False, node=None, timeout=None):
            if set(partitions) == {1}:
                raise error("nothing came")
            return await super().watermarks(partitions, linearizable=linearizable, node=node, timeout=timeout)

    session.client.__class__ = Silent
    session.client.stand, session.client.timeout = {1}, 0.01
    with pytest.raises(error):
        marks(read_options(E), session, left_out=LeftOut.STILL)


def test_a_change_of_leaders_ends_no_stream_that_goes_on_without_some(session):
    """The answer was that the node does not lead, for as long as all were asked for together."""

    class Changing(Client):
        async def watermarks(self, partitions, *, linearizable=False, node=None, timeout=None):
            if timeout == 2.0 and not self.limits:
                self.limits.append(timeout)
                raise NotLeader("this node does not lead", leader=None)
            return await super().watermarks(partitions, linearizable=linearizable, node=node, timeout=timeout)

    session.client.__class__ = Changing
    shown = marks(read_options(E), session, left_out=LeftOut.HIDDEN)
    assert [each.partition_id for each in shown] == [0, 1, 2]


def test_of_many_that_are_left_out_a_line_names_the_first(session, caplog):
    session.client.held = dict.fromkeys((0, *range(4, 40)), (1, 9))
    session.client.stand = set(range(4, 40))
    marks(read_options(E), session, left_out=LeftOut.STILL)
    names = ", ".join(map(str, range(4, 20)))
    assert f"1 of 37 partitions are read, without {names} and 20 more: this node is still" in caplog.text


def test_a_run_that_is_to_end_waits_for_all_but_what_stands_still(session):
    session.client.opening, session.client.stand = {0}, {1}
    shown = marks(read_options(E), session, left_out=LeftOut.STILL)
    assert [each.partition_id for each in shown] == [0, 2]
    assert session.client.limits == [2.0, None, 0.5]
    session.client.behind = {2}
    with pytest.raises(Unavailable):
        marks(read_options(E), session, left_out=LeftOut.STILL)


def test_what_stands_still_and_can_be_shown_is_read_to_there(session):
    class Paused(Client):
        async def status(self, *, node=None):
            rows = [[p, 1, 1, 1, 0, 1, "paused" if p < 2 else "running"] for p in self.held]
            return {"node": "n1", "leader": "n1", "partitions": rows}

    session.client.__class__ = Paused
    session.client.stand = {1}
    for left_out in (LeftOut.STILL, LeftOut.HIDDEN):
        shown = marks(read_options(E), session, left_out=left_out)
        assert [each.partition_id for each in shown] == [0, 2]


def test_where_all_that_is_read_stands_still_there_is_nothing_new(session):
    session.client.stand = {0, 1}
    for left_out in (LeftOut.STILL, LeftOut.HIDDEN):
        assert marks(read_options({**E, "partitions": "0,1"}), session, left_out=left_out) == []
