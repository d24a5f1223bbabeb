"""Which of the works and readings have a bound."""

from bench.spark import READINGS, WORKS, judge


def rows(rate):
    return [{"work": each.name, "median": rate} for each in (*WORKS, *READINGS)]


def test_reading_logs_and_writing_them_is_judged():
    bounds = {check.name: check.at_least for check in judge(rows(1.0))}
    assert bounds["rows/s into Spark, read log, all columns"] == 2_000_000
    assert bounds["rows/s into Spark, read log, value"] == 2_000_000
    assert bounds["rows/s from Spark, log, committed"] == bounds["rows/s from Spark, log, durable"] == 500_000


def test_a_rate_below_its_bound_is_missed():
    assert [check.met for check in judge(rows(1_999_999.0))].count(False) == 2
    assert all(check.met for check in judge(rows(2_000_000.0)))
