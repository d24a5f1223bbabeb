"""How starts are timed, judged and shown. No server is started."""

import asyncio
import json

import pytest

from bench import restart, subjects
from bench.restart import CASES, Case, Row
from bench.subjects import answered, lines_after


class Line:
    """A connection to a server that answers by ``answers``, in turn: True, False, an error, or never (None)."""

    def __init__(self, answers):
        self.answers, self.closed, self.asked = iter(answers), False, 0

    def close(self):
        self.closed = True

    async def ask(self):
        self.asked += 1
        answer = next(self.answers)
        if answer is None:
            await asyncio.get_running_loop().create_future()
        if isinstance(answer, Exception):
            raise answer
        return answer


def reaching(*lines):
    left = iter(lines)

    async def connect():
        line = next(left)
        if isinstance(line, Exception):
            raise line
        return line

    return connect


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(subjects, "PROBE_S", 0.001)
    monkeypatch.setattr(subjects, "GIVE_UP_S", 5.0)


async def test_it_is_asked_until_it_listens_and_says_yes():
    line = Line([False, ConnectionError("not yet"), True])
    await answered(reaching(ConnectionError("refused"), line), Line.ask, refused=(OSError,))
    assert line.asked == 3
    assert line.closed


async def test_a_question_that_hangs_keeps_no_other_from_being_answered():
    line = Line([None, None, True])
    await answered(reaching(line), Line.ask, refused=(OSError,))
    assert line.asked == 3


async def test_a_connection_that_ends_is_replaced():
    dead, line = Line([]), Line([True])
    dead.closed = True
    await answered(reaching(dead, line), Line.ask, refused=(OSError,))
    assert line.asked == 1


async def test_an_error_that_does_not_mean_later_is_raised():
    with pytest.raises(RuntimeError, match="broken"):
        await answered(reaching(Line([RuntimeError("broken")])), Line.ask, refused=(OSError,))


async def test_it_gives_up_some_time(monkeypatch):
    monkeypatch.setattr(subjects, "GIVE_UP_S", 0.05)
    with pytest.raises(TimeoutError):
        await answered(reaching(Line([None] * 1_000)), Line.ask, refused=(OSError,))


def test_log_lines_count_from_the_start_and_by_peer(tmp_path):
    def line(at, event, **more):
        return json.dumps({"event": event, "timestamp": f"1970-01-01T00:00:{at}Z", **more})

    log = tmp_path / "node.log"
    lines = [line("09.0", "serving"), line("10.5", "serving"), "Traceback", line("10.7", "link_up", peer="n2")]
    lines += [line("10.9", "link_up", peer="n3"), line("11.0", "serving"), "[]", "{}"]
    log.write_text("\n".join(lines))
    assert lines_after(log, 10.0) == {"serving": 0.5, "link_up n2": 0.7, "link_up n3": 0.9}


def test_all_ways_to_end_are_tried_once():
    assert len(set(CASES)) == len(CASES) == 8
    assert str(CASES[0]) == "follower, SIGTERM, warm"


def row(system, cache, *runs, who="follower", how="SIGKILL", what="read"):
    return Row(system, str(Case(who, how, cache)), what, runs)


def test_a_followers_first_read_is_judged_over_both_ends():
    rows = [
        row("logboom", "warm", 0.5, 0.6),
        row("logboom", "warm", 0.9, 0.8, 0.8, how="SIGTERM"),
        row("logboom", "cold", 2.0),
        row("logboom", "cold", 9.0, who="cluster"),
        row("logboom", "cold", 9.0, what="recovered"),
        row("etcd", "cold", 9.0),
    ]
    warm, cold = restart.judge(rows)
    assert (warm.value, warm.met) == (0.8, False)
    assert (cold.value, cold.met) == (2.0, True)


def test_nothing_is_judged_that_was_not_measured():
    assert restart.judge([row("etcd", "cold", 9.0)]) == []


def test_the_table_has_a_line_for_each_case_and_gaps_where_nothing_was_measured():
    rows = [row("logboom", "warm", 0.5, 0.7, 0.6), row("etcd", "warm", 1.0), row("etcd", "cold", 2.0)]
    assert restart.markdown([each.figures() for each in rows]).splitlines() == [
        "| | logboom: read | etcd: read |",
        "| --- | ---: | ---: |",
        "| follower, SIGKILL, warm | 0.60 (0.50-0.70) | 1.00 (1.00-1.00) |",
        "| follower, SIGKILL, cold | - | 2.00 (2.00-2.00) |",
    ]


def test_dropping_a_directory_leaves_its_files_as_they_are(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "file").write_bytes(b"x" * 10_000)
    restart.drop(tmp_path)
    assert restart.files(tmp_path) == [tmp_path / "deep" / "file"]
    assert (tmp_path / "deep" / "file").read_bytes() == b"x" * 10_000
