"""Which partitions a query is told the ends of, and which it goes on without."""

import pytest

from logboom.errors import Unavailable
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
    assert "2 of 3 partitions are read: this node is still recovering" in caplog.text
    if why == "opening":
        assert [each.partition_id for each in marks(asked, session)] == [0, 1, 2]
        return
    with pytest.raises(Unavailable):
        marks(asked, session)


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
