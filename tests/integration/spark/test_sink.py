"""The sink through a real Spark and real nodes. Keys begin with the test's own prefix."""

import dataclasses
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark import TaskContext
from pyspark.errors import AnalysisException
from pyspark.sql import functions as f

import logboom.spark
from logboom import Put
from logboom.errors import (
    BarrierTimeout,
    CommandsRejected,
    ConfigError,
    InvalidRequest,
    LogboomError,
    NonDeterministicReplay,
    NoSuchPartition,
    Unavailable,
)
from logboom.spark import driver
from logboom.spark.source import LogboomSource
from logboom.testing import LocalCluster

pytestmark = [pytest.mark.spark, pytest.mark.process]

KV = "0-3"
ROWS = 20_000


def adds(spark, prefix, rows=ROWS, tasks=4):
    """``rows`` commands over 97 keys: (1, id)."""
    return spark.range(0, rows, 1, tasks).select(
        f.concat(f.lit(prefix), (f.col("id") % 97).cast("string")).alias("key"),
        f.lit(1).cast("bigint").alias("n"),
        f.col("id").alias("total"),
    )


def expected(rows=ROWS, times=1):
    sums = {}
    for k in range(rows):
        n, total = sums.get(k % 97, (0, 0))
        sums[k % 97] = (n + times, total + times * k)
    return sums


def options(cluster, **more):
    return {"endpoints": cluster.endpoints, "partitions": KV, "addColumns": "n,total", **more}


def save(df, cluster, **more):
    df.write.format("logboom").options(**options(cluster, **more)).mode("append").save()


def state(spark, cluster, prefix, **more):
    """By the number in the key."""
    rows = spark.read.format("logboom").options(endpoints=cluster.endpoints, view="state", partitions=KV, **more).load()
    found = {bytes(r.key).decode(): tuple(r.numbers) for r in rows.where(f.col("numbers").isNotNull()).collect()}
    return {int(k.removeprefix(prefix)): v for k, v in found.items() if k.startswith(prefix)}


def records(client):
    return sum(mark.log_index for mark in client.watermarks())


def dying_once(df, ids):
    """The same rows; the first attempt of a task dies at one of these ids."""

    @f.udf("bigint", useArrow=False)
    def same(number):
        if number in ids and TaskContext.get().attemptNumber() == 0:
            raise RuntimeError("injected")
        return number

    return df.withColumn("total", same("total"))


def test_a_batch_is_applied_once_and_readable_on_every_node(spark, cluster):
    report = logboom.spark.submit(adds(spark, "batch-"), **options(cluster))
    assert (report.rows, report.duplicates) == (ROWS, 0)
    assert set(report.partitions) <= {0, 1, 2, 3}
    for node in cluster.nodes:
        assert state(spark, cluster, "batch-", node=node, atGlobalOffset=report.global_index) == expected()


@pytest.fixture
def small_batches(spark):
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, "100")
    yield
    spark.conf.set(name, before)


def test_tasks_that_die_half_way_take_effect_once(spark, cluster, small_batches):
    # Small batches, so that much of the first attempts is in before two of the four die near their end.
    rows = dying_once(adds(spark, "task-"), {4_900, 14_900})
    report = logboom.spark.submit(rows, **options(cluster, maxInFlightBytes=16_384))
    assert state(spark, cluster, "task-") == expected()
    assert report.duplicates > 0, "the first attempts left nothing: the test shows nothing"


def test_tasks_that_are_to_sort_and_are_given_a_part_write_nothing(spark, cluster, small_batches):
    rows = dying_once(adds(spark, "cut-"), {4_900, 14_900})
    report = logboom.spark.submit(rows, **options(cluster, rowOrder="sorted"))
    assert state(spark, cluster, "cut-") == expected()
    assert report.duplicates == 0


def test_a_whole_job_again_under_its_write_id_changes_nothing(spark, cluster):
    save(adds(spark, "again-"), cluster, writeId="nightly-1")
    report = logboom.spark.submit(adds(spark, "again-"), **options(cluster, writeId="nightly-1"))
    assert report.duplicates == report.rows == ROWS
    assert state(spark, cluster, "again-") == expected()
    save(adds(spark, "again-"), cluster, writeId="nightly-2")
    assert state(spark, cluster, "again-") == expected(times=2)


def test_other_rows_under_a_known_write_id_are_noticed(spark, cluster):
    logboom.spark.submit(adds(spark, "other-"), **options(cluster, writeId="one"))
    with pytest.raises(NonDeterministicReplay, match="ran before from here with 20000 rows and now with 19999"):
        logboom.spark.submit(adds(spark, "other-", rows=ROWS - 1), **options(cluster, writeId="one"))


def test_a_leader_that_dies_during_the_job_costs_nothing(spark, cluster, client):
    big = 200_000
    start, killed = records(client), threading.Event()

    def kill():
        while records(client) - start < big // 8:
            time.sleep(0.01)
        cluster.kill(client.status()["leader"])
        killed.set()

    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill)
        report = logboom.spark.submit(adds(spark, "leader-", rows=big), **options(cluster, maxInFlightBytes=65_536))
        assert killed.is_set(), "the job was over first: the test shows nothing"
        killing.result()
    live = [n for n in cluster.nodes if cluster.alive(n)]
    cluster.start()
    assert report.rows == big
    for node in (*live, *cluster.nodes):
        logboom.spark.barrier(report, timeout=30, scope="all")
        assert state(spark, cluster, "leader-", node=node, atGlobalOffset=report.global_index) == expected(big)


def test_a_rate_makes_a_write_slow_and_does_not_fail_it(spark):
    """What a task has under way takes the rate longer than the time of one request."""

    @f.udf("bigint", useArrow=False)
    def of_a_first_attempt(number):
        if TaskContext.get().attemptNumber():
            raise RuntimeError("a task was run again")
        return number

    rows = adds(spark, "rate-", 40_000, 2)
    settings = {"admission.principal_ops_per_s": 5_000, "admission.rate_burst_ms": 100}
    with LocalCluster(nodes=1, partitions=16, settings=settings) as slow, slow.client() as reader:
        report = logboom.spark.submit(
            rows.withColumn("n", of_a_first_attempt("n")),
            endpoints=slow.endpoints,
            addColumns="n,total",
            requestTimeoutMs=2_000,
        )
        assert report.rows == 40_000
        found = {int(k.decode().removeprefix("rate-")): v for p in range(16) for k, v in reader.scan(p)}
        assert found == expected(40_000)


@pytest.fixture
def behind(cluster, client):
    """Address of a node that does not apply."""
    leader = cluster.leader()
    address = next(where for node, where in cluster.addresses.items() if node != leader)
    for partition in range(4):
        client.admin("pause", partition, node=address)
    yield address
    for partition in range(4):
        client.admin("resume", partition, node=address)


@pytest.mark.parametrize("wait", ["committed", "durable"])
def test_the_job_waits_for_the_level_asked_for(spark, cluster, client, behind, wait):
    report = logboom.spark.submit(
        adds(spark, f"{wait}-", rows=100), **options(cluster, wait=wait, barrierScope="all", barrierTimeoutMs=30_000)
    )
    assert report.receipts
    marks = {m.partition_id: m for m in client.watermarks(node=behind)}
    for receipt in report.receipts:
        mark = marks[receipt.partition_id]
        reached = {"committed": mark.log_index, "durable": mark.durable_index}[wait]
        assert mark.applied_index < receipt.last_index <= reached


def test_and_who_waits_until_it_is_applied_waits_for_those_who_do_not_apply(spark, cluster, behind):
    with pytest.raises(BarrierTimeout, match="all 100 rows are in") as caught:
        logboom.spark.submit(
            adds(spark, "applied-", rows=100),
            **options(cluster, wait="applied", barrierScope="all", barrierTimeoutMs=500),
        )
    assert caught.value.outcome == "applied"


def test_a_barrier_that_cannot_be_passed_says_so_with_the_watermarks(spark, cluster, client):
    report = logboom.spark.submit(adds(spark, "barrier-", rows=100), **options(cluster))
    ahead = dataclasses.replace(report, global_index=report.global_index + 1_000)
    with pytest.raises(BarrierTimeout, match="all 100 rows are in") as caught:
        logboom.spark.barrier(ahead, timeout=0.2)
    assert caught.value.outcome == "applied"
    assert caught.value.watermarks


def test_puts_and_deletes_and_a_key_column_by_name(spark, cluster, client):
    rows = spark.range(100).select(f.concat(f.lit("put-"), f.col("id")).alias("name"), f.lit("v").alias("value"))
    logboom.spark.submit(rows, endpoints=cluster.endpoints, partitions=[1], key="name")
    assert client.get(1, b"put-7") == b"v"
    logboom.spark.submit(
        rows.limit(50).select("name"), endpoints=cluster.endpoints, partitions=[1], key="name", op="delete"
    )
    assert len(list(client.scan(1, prefix=b"put-"))) == 50


def test_refused_commands_fail_the_job_and_are_counted(spark, cluster, client):
    client.submit(2, Put(b"refused", b"bytes"))
    rows = spark.range(5).select(f.lit("refused").alias("key"), f.col("id").alias("n"))
    with pytest.raises(CommandsRejected) as caught:
        logboom.spark.submit(rows, endpoints=cluster.endpoints, partitions=[2], addColumns="n")
    assert caught.value.statuses == {"WRONG_TYPE": 5}
    assert client.get(2, b"refused") == b"bytes"


def test_no_rows_are_no_work(spark, cluster):
    report = logboom.spark.submit(adds(spark, "none-", rows=0), **options(cluster))
    assert (report.rows, report.global_index, report.receipts) == (0, 0, ())


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ({"writeID2": "x"}, InvalidRequest, "unknown option 'writeid2'; did you mean writeId"),
        ({"wait": "soon"}, InvalidRequest, "wait takes"),
        ({"partitions": "77"}, NoSuchPartition, "names 77"),
        ({"partitions": "0-4"}, InvalidRequest, "different state machines"),
        ({"addColumns": "n,nothing"}, InvalidRequest, "addColumns names 'nothing'"),
        ({"endpoints": "127.0.0.1:1", "requestTimeoutMs": "300"}, Unavailable, "no node at 127.0.0.1:1 answered"),
    ],
)
def test_what_is_wrong_is_said_before_any_job_runs(spark, cluster, client, more, error, message):
    before = records(client)
    jobs = len(spark.sparkContext.statusTracker().getJobIdsForGroup())
    with pytest.raises(error, match=message):
        logboom.spark.submit(adds(spark, "wrong-"), **options(cluster, **more))
    with pytest.raises(AnalysisException, match=message):
        save(adds(spark, "wrong-"), cluster, **more)
    assert len(spark.sparkContext.statusTracker().getJobIdsForGroup()) == jobs
    assert records(client) == before


def test_rows_that_do_not_fit_come_back_as_typed_errors(spark, cluster):
    rows = adds(spark, "null-", rows=10).withColumn("n", f.lit(None).cast("bigint"))
    with pytest.raises(InvalidRequest, match=r"column n has .* nulls") as caught:
        logboom.spark.submit(rows, **options(cluster))
    assert caught.value.outcome == "unknown", "other tasks may have written"


def test_a_second_key_column_is_refused_by_name(spark, cluster):
    rows = spark.createDataFrame([("k", "v", "i")], ["key", "value", "id"])
    with pytest.raises(InvalidRequest, match="there is a column 'key': drop or rename that"):
        logboom.spark.submit(rows, endpoints=cluster.endpoints, partitions=KV, key="id")


def test_a_new_session_has_the_source_without_a_call(spark, cluster):
    assert state(spark.newSession(), cluster, "fresh-") == {}


class Elsewhere(LogboomSource):
    """One that Spark does not find by itself."""

    @classmethod
    def name(cls):
        return "elsewhere"


def test_a_new_session_gets_the_source_while_another_is_active(spark, cluster, monkeypatch):
    """Spark says of it that it is not there, and that it is there already."""
    monkeypatch.setattr(driver, "LogboomSource", Elsewhere)
    spark.dataSource.register(Elsewhere)
    fresh = spark.newSession()
    rows = fresh.read.format("elsewhere").options(endpoints=cluster.endpoints, view="state")
    with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
        rows.load().collect()
    logboom.spark.register(fresh)
    assert rows.load().where("key = 'fresh-'").collect() == []
    active = spark.getActiveSession()
    assert active is not None
    assert active._jsparkSession.equals(spark._jsparkSession)


def test_overwrite_is_refused_clearly(spark, cluster):
    with pytest.raises(AnalysisException, match="use mode"):
        adds(spark, "mode-").write.format("logboom").options(**options(cluster)).mode("overwrite").save()


def test_sql_inserts_into_a_view_with_columns_of_its_own(spark, cluster, client):
    def view(name, **more):
        named = {"endpoints": cluster.endpoints, "partitions": KV, "addColumns": "n", **more}
        where = ", ".join(f"{key} '{value}'" for key, value in named.items())
        spark.sql(f"CREATE TEMPORARY VIEW {name} (key STRING, n BIGINT) USING logboom OPTIONS ({where})")

    view("adding")
    view("once", writeId="sql-1")
    try:
        for _ in range(2):  # the second changes nothing
            spark.sql("INSERT INTO once SELECT concat('sql-', id % 2), id FROM range(0, 9, 1, 2)")
        for _ in range(2):
            spark.sql("INSERT INTO adding (n, key) VALUES (100, 'sql-0')")
        found = {key: value for p in range(4) for key, value in client.scan(p, prefix=b"sql-")}
        assert found == {b"sql-0": (220,), b"sql-1": (16,)}
        with pytest.raises(AnalysisException, match="INSERT INTO"):
            spark.sql("INSERT OVERWRITE adding VALUES ('sql-0', 1)")
    finally:
        spark.sql("DROP VIEW adding")
        spark.sql("DROP VIEW once")


def test_the_report_of_a_save_is_left_where_asked(spark, cluster, tmp_path):
    save(adds(spark, "file-", rows=10), cluster, reportFile=str(tmp_path / "report.json"))
    report = json.loads((tmp_path / "report.json").read_text())["report"]
    assert report["rows"] == 10
    assert "target" not in report


def test_so_is_what_went_wrong_in_place_of_an_earlier_one(spark, cluster, client, tmp_path):
    """A task that failed left the report of the write before it, with all its rows."""
    path = tmp_path / "report.json"

    def left():
        return json.loads(path.read_text())["error"]

    nulls = adds(spark, "file-", rows=10, tasks=1).withColumn("n", f.lit(None).cast("bigint"))
    save(adds(spark, "file-", rows=10, tasks=1), cluster, reportFile=str(path))
    with pytest.raises(Exception, match="column n has"):
        save(nulls, cluster, reportFile=str(path), writeId="nulls")
    assert (left()["code"], left()["outcome"]) == ("unknown_outcome", "unknown")
    assert "write nulls: 1 of 1 tasks did not come to their end" in left()["message"]
    with pytest.raises(InvalidRequest, match="column n has"):
        logboom.spark.submit(nulls, **options(cluster, reportFile=str(path)))
    assert (left()["code"], left()["outcome"]) == ("invalid_request", "unknown")
    dying = f.raise_error(f.concat(f.lit("in front of "), f.col("key"))).cast("bigint")
    shuffled = adds(spark, "file-", rows=10, tasks=1).withColumn("n", dying).repartition(2)
    with pytest.raises(Exception, match="in front of file-0"):  # and of the tasks that write
        logboom.spark.submit(shuffled, **options(cluster, reportFile=str(path), writeId="shuffled"))
    assert left()["code"] == "unknown_outcome"
    assert "write shuffled was begun, and has not come to its end" in left()["message"]
    assert "in front of file-0" in left()["message"]
    client.submit(2, Put(b"file-refused", b"bytes"))
    refused = spark.range(0, 5, 1, 1).select(f.lit("file-refused").alias("key"), f.col("id").alias("n"))
    with pytest.raises(Exception, match="refused 5 of 5"):
        save(refused, cluster, partitions="2", addColumns="n", reportFile=str(path))
    assert left()["code"] == "commands_rejected", "the whole error of the commit"


def test_a_cluster_with_tls_is_written_and_read_with_a_client_certificate(spark, tmp_path):
    with LocalCluster(nodes=1, partitions=2, tls=True) as secured:
        reach = {"endpoints": secured.endpoints, "tlsDir": str(secured.tls_directory)}
        report = logboom.spark.submit(adds(spark, "tls-", rows=97), addColumns="n,total", **reach)
        rows = spark.read.format("logboom").options(view="state", atGlobalOffset=report.global_index, **reach).load()
        assert rows.count() == 97
        with pytest.raises(ConfigError, match="logboom certs"):
            logboom.spark.submit(adds(spark, "tls-"), addColumns="n,total", **{**reach, "tlsDir": str(tmp_path)})
        with pytest.raises(LogboomError):
            logboom.spark.submit(
                adds(spark, "tls-"), addColumns="n,total", endpoints=secured.endpoints, requestTimeoutMs=500
            )


@pytest.fixture
def adapting(spark):
    """Have Spark make few or many tasks behind a shuffle, as fewer or more cores do with more rows."""
    names = [f"spark.sql.adaptive.coalescePartitions.minPartition{what}" for what in ("Num", "Size")]

    def make(tasks, size):
        for name, value in zip(names, (tasks, size), strict=True):
            spark.conf.set(name, value)

    yield make
    for name in names:
        spark.conf.unset(name)


def test_a_number_of_tasks_that_is_said_is_kept_to_where_spark_adapts_it(spark, cluster, adapting):
    """docs/spark.md: without one, what is run again on other cores is another write."""
    rows = adds(spark, "adapts-", 600, 2)
    found = []
    for adapted in ((1, "1MB"), (2, "1b")):
        adapting(*adapted)
        found.append(
            logboom.spark.submit(rows.repartition(4, "key"), **options(cluster, writeId="a4", rowOrder="sorted"))
        )
    assert [r.duplicates for r in found] == [0, 600]
    assert state(spark, cluster, "adapts-") == expected(600)
    adapting(1, "1MB")
    left = rows.repartition("key")
    logboom.spark.submit(left, **options(cluster, writeId="a", rowOrder="sorted"))
    adapting(2, "1b")
    with pytest.raises(NonDeterministicReplay):
        logboom.spark.submit(left, **options(cluster, writeId="a", rowOrder="sorted"))
