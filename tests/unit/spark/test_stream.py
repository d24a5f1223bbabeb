"""The stream's reader without Spark around it."""

from types import SimpleNamespace

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from logboom.errors import InvalidRequest, LineageMismatch, NoSuchPartition, PartitionDestroyed, Unavailable
from logboom.spark import stream
from logboom.spark.batch import view_schema
from logboom.spark.ends import LeftOut
from logboom.spark.options import read_options
from logboom.spark.shares import Share
from logboom.spark.stream import LogboomStreamReader, LogboomStreamWriter
from logboom.types import Watermark
from tests.unit.spark.sink_world import plan

HISTORY = {"now": ("boom", "")}
ELSEWHERE = set[int]()
"""Partitions that the leader knows, and the node that is asked does not."""


class Ends(dict):
    """Offsets applied, by partition; as much as was applied once, and ``ahead``, is logged."""

    ahead = 0
    asked = 0
    state = "running"

    def __init__(self, *given):
        super().__init__(*given)
        self.coming = []
        """What partition 0 has applied, each time that somebody asks."""
        self.shut = set()
        """Partitions that are listed, and do not open."""
        self.still = set()
        """Partitions that stand still, and cannot be shown for that."""


@pytest.fixture
def ends(monkeypatch):
    """A log begins at 1, that of partition 3 at 50."""
    found, logged = Ends({0: 100, 3: 200}), {}
    monkeypatch.setattr(stream, "reached", lambda target: None)
    monkeypatch.setattr(stream, "session", lambda target: None)

    def marks(options, session, *, left_out=LeftOut.NOTHING):
        if found.shut and left_out is not LeftOut.HIDDEN:
            raise Unavailable(f"partition {found.shut} is not open here yet")
        if found.still and left_out is LeftOut.NOTHING:
            raise Unavailable(f"partition {found.still} is paused")
        found.asked += 1
        logged.update({p: max(n + found.ahead, logged.get(p, 0)) for p, n in found.items()})
        if found.coming:
            found[0] = found.coming.pop(0)
        shown = [(p, n) for p, n in sorted(found.items()) if p not in found.shut | found.still]
        return [Watermark(p, logged[p], logged[p], n, 0, 1, found.state) for p, n in shown]

    monkeypatch.setattr(stream, "marks", marks)
    monkeypatch.setattr(stream, "living", lambda session: frozenset(found) | ELSEWHERE, raising=False)
    monkeypatch.setattr(stream, "history", lambda session: HISTORY["now"])

    def first_asked(options, session, last):
        assert last == {p: logged[p] for p in last}
        return {p: 50 + options.start_global for p in last if p == 3}

    monkeypatch.setattr(stream, "first_asked", first_asked)
    return found


def reader(**options):
    return LogboomStreamReader(view_schema("log"), read_options({"endpoints": "a:1", **options}, stream=True))


@pytest.mark.parametrize(
    ("options", "begin"),
    [
        ({}, {"0": 1, "3": 50}),
        ({"startingOffsets": "latest"}, {"0": 101, "3": 201}),
        ({"startingOffsets": '{"0": 7, "3": -1}'}, {"0": 7, "3": 201}),
        ({"startingOffsets": '{"0": 7}', "partitions": "0,3"}, {"0": 7, "3": 50}),
        ({"partitions": "3"}, {"3": 50}),
        ({"startingGlobalOffset": "7"}, {"0": 1, "3": 57}),
    ],
)
def test_a_query_begins_where_asked(ends, options, begin):
    assert reader(**options).initialOffset()["next"] == begin


def test_a_partition_that_is_not_there_is_an_error(ends):
    for options in ({"partitions": "0,7"}, {"startingOffsets": '{"7": 1}'}):
        with pytest.raises(NoSuchPartition):
            reader(**options).initialOffset()


def test_where_a_query_begins_is_asked_once(ends):
    found = reader(startingOffsets="latest")
    first = found.initialOffset()
    ends[0] = 500
    assert found.initialOffset() == first


def test_only_what_is_applied_is_read(ends):
    ends.ahead = 9
    found = reader()
    end = found.latestOffset(found.initialOffset(), ReadAllAvailable())
    assert end["next"] == {"0": 101, "3": 201}
    assert found.reportLatestOffset()["next"] == {"0": 101, "3": 201}
    assert [p.share for p in found.partitions(found.initialOffset(), end)] == [Share(0, 1, 100), Share(3, 50, 200)]


def test_the_limit_is_the_option_and_sparks_wish_comes_first(ends):
    found = reader(maxOffsetsPerTrigger="30")
    assert found.getDefaultReadLimit() == ReadMaxRows(30)
    start = found.initialOffset()
    limited = found.latestOffset(start, found.getDefaultReadLimit())
    assert sum(p.share.rows for p in found.partitions(start, limited)) == 30
    assert found.latestOffset(start, ReadAllAvailable())["next"] == {"0": 101, "3": 201}
    assert reader().getDefaultReadLimit() == ReadAllAvailable()


def test_available_now_ends_with_what_there_was(ends):
    found = reader()
    found.prepareForTriggerAvailableNow()
    ends.update({0: 300, 9: 10})
    end = found.latestOffset(found.initialOffset(), ReadAllAvailable())
    ends[0] = 400
    assert found.latestOffset(end, ReadAllAvailable()) == end
    assert end["next"] == {"0": 101, "3": 201, "9": 1}


def test_available_now_does_not_end_early_at_a_leader_that_has_yet_to_apply_what_there_was(ends):
    """The next one has all that the one before had applied, and needs a moment to apply it, too."""
    found = reader(maxOffsetsPerTrigger="60")
    found.prepareForTriggerAvailableNow()
    place, read = found.initialOffset(), 0
    for applied in (100, 20, 20, 20, 20):
        ends[0] = applied
        following = found.latestOffset(place, found.getDefaultReadLimit())
        read += sum(p.share.rows for p in found.partitions(place, following))
        place = following
    assert (place["next"], read) == ({"0": 101, "3": 201}, 251)


def available_now(found):
    found.prepareForTriggerAvailableNow()
    return found.latestOffset(found.initialOffset(), ReadAllAvailable())["next"]


def latest(found):
    return found.initialOffset()["next"]


@pytest.mark.parametrize(("start", "begin"), [("earliest", available_now), ("latest", latest)])
class TestWhoHasJustComeToLead:
    def test_what_there_is_is_what_it_has_yet_to_apply_too(self, ends, start, begin):
        """An AvailableNow left out what had been answered as applied, and ``latest`` began in front of it."""
        ends.coming = [20, 60, 100]
        assert begin(reader(startingOffsets=start)) == {"0": 101, "3": 201}

    def test_but_not_what_comes_meanwhile(self, ends, start, begin):
        ends.coming = [20, 100, 400]
        assert begin(reader(startingOffsets=start)) == {"0": 101, "3": 201}

    def test_one_that_does_not_get_there_in_time_is_what_it_is(self, ends, start, begin, caplog):
        ends.ahead = 9
        found = reader(startingOffsets=start, requestTimeoutMs="100")
        assert begin(found) == {"0": 101, "3": 201}
        assert "partition 0: applied up to 100, not to 109" in caplog.text

    def test_one_that_stands_still_is_not_waited_for(self, ends, start, begin):
        ends.ahead, ends.state = 9, "paused"
        assert begin(reader(startingOffsets=start)) == {"0": 101, "3": 201}
        assert ends.asked <= 3, "each time once"

    def test_a_node_that_is_named_may_be_behind_whatever_it_says(self, ends, start, begin):
        ends.ahead = 9
        assert begin(reader(startingOffsets=start, node="n1")) == {"0": 101, "3": 201}
        assert ends.asked <= 3


def test_a_new_leader_that_has_applied_less_takes_nothing_back(ends):
    found = reader()
    end = found.latestOffset(found.initialOffset(), ReadAllAvailable())
    ends[0] = 60
    assert found.latestOffset(end, ReadAllAvailable()) == end


@pytest.mark.parametrize("options", [{}, {"partitions": "0,3,7"}])
def test_one_that_does_not_open_keeps_nobody_from_the_others(ends, options):
    """Whoever leads could not open one of a thousand, and no stream over all of them went on."""
    ends[7] = 20
    begun = reader(**options).latestOffset(reader(**options).initialOffset(), ReadAllAvailable())
    ends.update({0: 150, 3: 250, 7: 30, 8: 5})
    ends.shut = {3, 7, 8}
    going, again = reader(**options), reader(**options)
    later = going.latestOffset(begun, ReadAllAvailable())
    assert later["next"] == {"0": 151, "3": 201, "7": 21}
    ends.shut = set()
    shares = [each.share for each in again.partitions(later, again.latestOffset(later, ReadAllAvailable()))]
    assert shares[:2] == [Share(3, 201, 250), Share(7, 21, 30)]
    assert [each.partition_id for each in shares[2:]] == ([] if options else [8])
    ends.shut = {8}
    with pytest.raises(Unavailable):
        available_now(reader(**options))


@pytest.mark.parametrize("options", [{}, {"partitions": "0,3"}])
@pytest.mark.parametrize("now", [False, True])
def test_one_that_stands_still_and_cannot_be_shown_stays_where_it_is(ends, options, now):
    """Once its node had been started again no query over it went on, AvailableNow neither, until it was mended."""
    begun = reader(**options).latestOffset(reader(**options).initialOffset(), ReadAllAvailable())
    ends[0], ends.still = 150, {3}
    found = reader(**options)
    if now:
        found.prepareForTriggerAvailableNow()
    later = found.latestOffset(begun, ReadAllAvailable())
    assert later["next"] == {"0": 151, "3": 201}
    ends.still, ends[3] = set(), 250
    assert found.latestOffset(later, ReadAllAvailable())["next"] == {"0": 151, "3": 201 if now else 251}
    ends.still = {3}
    with pytest.raises(Unavailable):  # where is it to begin?
        reader(**options).initialOffset()


def test_one_that_is_named_and_not_open_yet_is_there(ends, monkeypatch):
    ends.update({7: 20})
    begun = reader(partitions="0,3").latestOffset(reader(partitions="0,3").initialOffset(), ReadAllAvailable())
    ends.shut, ends[0] = {7}, 150
    assert reader(partitions="0,3,7").latestOffset(begun, ReadAllAvailable())["next"] == {"0": 151, "3": 201}


def test_a_destroyed_partition_is_an_error_or_left_out(ends, caplog):
    end = reader().latestOffset(reader().initialOffset(), ReadAllAvailable())
    del ends[3]
    with pytest.raises(PartitionDestroyed, match="partition 3 was read up to offset 200"):
        reader().latestOffset(end, ReadAllAvailable())
    following = reader(failOnDataLoss="false").latestOffset(end, ReadAllAvailable())
    assert following["next"] == {"0": 101}
    assert "partition 3 is destroyed" in caplog.text
    assert reader(failOnDataLoss="false").latestOffset(following, ReadAllAvailable()) == following


def test_of_one_that_is_gone_a_stream_of_a_named_node_asks_no_leader(ends, monkeypatch):
    """It asked at each trigger, of what it has no use for: while nobody led the query failed."""

    def nobody_leads(session):
        raise Unavailable("nobody leads")

    found = reader(partitions="0,3", node="n3", failOnDataLoss="false")
    start = found.initialOffset()
    del ends[3]
    gone = found.latestOffset(start, ReadAllAvailable())
    assert gone["next"] == {"0": 101}
    monkeypatch.setattr(stream, "living", nobody_leads)
    ends[0] = 150
    assert found.latestOffset(gone, ReadAllAvailable())["next"] == {"0": 151}


def test_a_partition_that_is_not_asked_for_is_left_out_and_goes_on_where_it_was_when_it_is_again(ends):
    end = reader().latestOffset(reader().initialOffset(), ReadAllAvailable())
    ends.update({0: 150, 3: 250})
    later = reader(partitions="0").latestOffset(end, ReadAllAvailable())
    assert [p.share for p in reader().partitions(end, later)] == [Share(0, 101, 150)]
    again = reader().latestOffset(later, ReadAllAvailable())
    assert [p.share for p in reader().partitions(later, again)] == [Share(3, 201, 250)]
    del ends[3]
    assert reader(partitions="0").latestOffset(later, ReadAllAvailable()) == later
    with pytest.raises(PartitionDestroyed):
        reader().latestOffset(later, ReadAllAvailable())


def test_a_query_that_goes_on_with_partitions_that_do_not_exist_says_so(ends):
    """All those of its checkpoint are left out then: it would read nothing, for ever."""
    end = reader().latestOffset(reader().initialOffset(), ReadAllAvailable())
    ends[0] = 150
    with pytest.raises(NoSuchPartition, match="option partitions names 30, which does not exist"):
        reader(partitions="30").latestOffset(end, ReadAllAvailable())
    waits = reader(partitions="0,30", failOnDataLoss="false")
    later = waits.latestOffset(end, ReadAllAvailable())
    assert later["next"] == {"0": 151, "3": 201}
    ends[30] = 5
    assert waits.latestOffset(later, ReadAllAvailable())["next"]["30"] == 6


def test_what_a_node_does_not_know_yet_is_not_taken_for_destroyed(ends, monkeypatch):
    """It begins anew, say. Forgotten, a partition would be read again from its first record."""
    end = reader().latestOffset(reader().initialOffset(), ReadAllAvailable())
    monkeypatch.setattr(f"{__name__}.ELSEWHERE", {3})
    three = ends.pop(3)
    ends[0] = 150
    for options in ({"node": "n1"}, {"node": "n1", "failOnDataLoss": "false"}):
        later = reader(**options).latestOffset(end, ReadAllAvailable())
        assert later["next"] == {"0": 151, "3": 201}
    ends[3] = three + 5
    again = reader(node="n1")
    assert [p.share for p in again.partitions(later, again.latestOffset(later, ReadAllAvailable()))] == [
        Share(3, 201, 205)
    ]


def test_a_global_offset_to_begin_at_stays_that_of_the_query(ends):
    found = reader(startingGlobalOffset="40")
    end = found.latestOffset(found.initialOffset(), ReadAllAvailable())
    later = reader(startingGlobalOffset="90")
    assert {p.span.low for p in later.partitions(found.initialOffset(), end)} == {40}


@pytest.mark.parametrize("history", [("boom", "f" * 32), ("other", "")])
@pytest.mark.parametrize("again", ["the batch that was under way", "the next batch"])
def test_a_checkpoint_of_another_history_is_refused(ends, monkeypatch, history, again):
    """A restored cluster, or another one: the same offsets are other records."""
    start = reader().initialOffset()
    end = reader().latestOffset(start, ReadAllAvailable())
    ends.update({0: 500, 3: 500})
    monkeypatch.setitem(HISTORY, "now", history)
    found = reader(failOnDataLoss="false")
    asked = (
        (found.latestOffset, end, ReadAllAvailable()) if again == "the next batch" else (found.partitions, start, end)
    )
    with pytest.raises(LineageMismatch, match="new checkpoint"):
        asked[0](*asked[1:])


def test_tasks_know_in_which_history_they_were_planned(ends, monkeypatch):
    monkeypatch.setitem(HISTORY, "now", ("boom", "f" * 32))
    start = reader().initialOffset()
    planned = reader().partitions(start, reader().latestOffset(start, ReadAllAvailable()))
    assert {each.history for each in planned} == {("boom", "f" * 32)}


def test_a_checkpoint_of_an_earlier_release_is_of_the_first_history_and_learns_its_name(ends, monkeypatch):
    old = {"version": 1, "next": {"0": 50, "3": 201}}
    end = reader().latestOffset(old, ReadAllAvailable())
    assert end == {"version": 1, "next": {"0": 101, "3": 201}, "cluster": "boom"}
    assert reader().latestOffset({**old, "next": end["next"]}, ReadAllAvailable()) == {**old, "next": end["next"]}
    monkeypatch.setitem(HISTORY, "now", ("boom", "f" * 32))
    with pytest.raises(LineageMismatch):
        reader().latestOffset(old, ReadAllAvailable())


def test_a_log_that_ends_before_what_was_read_of_it_is_another(ends):
    """Data that was removed and begun anew under the same names; of a node alone, it may be behind."""
    ends.ahead = 9
    ahead = {"version": 1, "next": {"0": 111, "3": 201}}
    with pytest.raises(LineageMismatch, match="partition 0 was read up to offset 110, and its log ends at 109"):
        reader().latestOffset(ahead, ReadAllAvailable())
    assert reader(node="n1").latestOffset(ahead, ReadAllAvailable()) == ahead
    with pytest.raises(InvalidRequest, match="startingOffsets names 111 of partition 0, whose log ends at 109"):
        reader(startingOffsets='{"0": 111}').initialOffset()
    assert reader(startingOffsets='{"0": 110}').initialOffset()["next"]["0"] == 110


def test_a_new_query_begins_at_a_time(ends, monkeypatch):
    ends.ahead = 9
    asked = []

    def offsets_from(time_ms, last, session, *, node):
        asked.append((time_ms, last, node))
        return {0: 61, 3: 210}

    monkeypatch.setattr(stream, "offsets_from", offsets_from)
    assert reader(startingTimestamp="5000").initialOffset()["next"] == {"0": 61, "3": 210}
    assert asked == [(5000, {0: 109, 3: 209}, None)], "up to what is committed, applied or not"


def test_few_rows_wait_for_more_and_not_for_long(ends, monkeypatch):
    clock = {"now": 1000.0}
    monkeypatch.setattr(stream, "time", SimpleNamespace(monotonic=lambda: clock["now"]))
    found = reader(minOffsetsPerTrigger="20", maxTriggerDelay="30s", startingOffsets="latest")
    assert found.getDefaultReadLimit() == ReadMinRows(20)
    limit, place = found.getDefaultReadLimit(), found.initialOffset()
    ends[0] += 1
    place, before = found.latestOffset(place, limit), place
    assert place != before, "nothing is waited for at first"
    ends[0] += 12
    assert found.latestOffset(place, limit) == place
    ends[3] += 8
    place, before = found.latestOffset(place, limit), place
    assert place != before, "there are as many as that"
    ends[0] += 3
    assert found.latestOffset(place, limit) == place
    assert found.latestOffset(place, ReadAllAvailable()) != place, "Trigger.Once wants what there is"
    ends[0] += 3
    clock["now"] += 29.9
    assert found.latestOffset(place, limit) == place
    clock["now"] += 0.1
    assert found.latestOffset(place, limit)["next"] == {"0": 120, "3": 209}


def test_what_is_there_now_waits_for_nothing(ends):
    found = reader(minOffsetsPerTrigger="200", maxOffsetsPerTrigger="250")
    assert found.getDefaultReadLimit() == ReadMaxRows(250)
    place = found.initialOffset()
    found.prepareForTriggerAvailableNow()
    first = found.latestOffset(place, found.getDefaultReadLimit())
    assert found.latestOffset(first, found.getDefaultReadLimit())["next"] == {"0": 101, "3": 201}


def test_a_batch_that_no_task_has_written_is_no_batch_of_ours(monkeypatch):
    """With a continuous trigger Spark takes the sink, hands it no row, and counts them as written if commit does."""
    monkeypatch.setattr(stream, "plan_write", lambda schema, options: plan())
    writer = LogboomStreamWriter(None, None)
    with pytest.raises(InvalidRequest, match=r"batch 3: none of 2 tasks has written: with a continuous trigger"):
        writer.commit([None, None], 3)
