"""logboom → Spark → logboom while drivers, Python workers and nodes are killed: the sums are those of a run without.

``SPARK_E2E_SEED`` repeats a schedule.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from logboom import Record
from logboom.errors import LogboomError
from logboom.testing import LocalCluster

pytestmark = [pytest.mark.timeout(600), pytest.mark.spark, pytest.mark.process]

JOB = Path(__file__).parent / "stream_job.py"
EVENTS, STEP, KEYS, LOGS = 1_500, 300, 50, range(4, 8)
PATIENCE_S = 180.0


class Driver:
    """The job in a process group of its own."""

    def __init__(self, cluster, directory):
        self.cluster, self.directory, self.process = cluster, directory, None
        self.ended = 0

    def supervise(self):
        """A query may end with a fault that its driver outlives, such as a killed worker of the source's own."""
        if self.process.poll() is not None:
            self.ended += 1
            assert self.ended < 4, f"the job ends by itself again and again:\n{self.log()}"
            self.start()

    def start(self):
        places = [self.directory / "checkpoint", self.directory, self.directory / "finish"]
        arguments = [self.cluster.endpoints, *map(str, places)]
        with (self.directory / "driver.log").open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(JOB), *arguments], stdout=output, stderr=output, start_new_session=True
            )

    def finish(self):
        """It writes what is left, and ends."""
        (self.directory / "finish").touch()
        while self.process.wait(PATIENCE_S) != 0:
            self.supervise()

    def kill(self):
        """With its JVM and the workers, so that two never run side by side: Spark forbids that itself."""
        for pid in [self.process.pid, *self.session()]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def session(self):
        """All processes that the job began; Spark's Python daemon has a group of its own, not a session."""
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(ProcessLookupError):
                if entry.name.isdigit() and os.getsid(int(entry.name)) == self.process.pid:
                    found.append(int(entry.name))
        return found

    def workers(self):
        """Forks of Spark's Python daemon: who runs tasks, and who asks the source how far it is."""
        found = []
        for pid in self.session():
            with suppress(OSError):
                process = Path(f"/proc/{pid}")
                parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
                if all(b"pyspark.daemon" in (p / "cmdline").read_bytes() for p in (process, Path(f"/proc/{parent}"))):
                    found.append(pid)
        return found

    def log(self):
        return "".join(p.read_text(errors="replace")[-3000:] for p in sorted(self.directory.glob("*.log")))


def counted(client):
    """Events in the sums: the first number of every key."""
    rows = [row for p in range(4) for row in client.scan(p, stale=True)]
    return sum(value[0] for _, value in rows)


def wait(driver, what):
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        driver.supervise()
        assert time.monotonic() < deadline, f"nothing happens:\n{driver.log()}"
        time.sleep(0.05)


def test_a_stream_from_logs_to_sums_is_exact_whatever_is_killed(tmp_path):
    seed = int(os.environ.get("SPARK_E2E_SEED", "7"))
    print(f"SPARK_E2E_SEED={seed}")
    chance = random.Random(seed)
    events = [(chance.choice(LOGS), b"key-%d" % chance.randrange(KEYS), chance.randrange(1000)) for _ in range(EVENTS)]
    faults = ["driver", "worker", "leader", "follower"]
    chance.shuffle(faults)
    settings = {"cluster.overrides": {str(p): {"state_machine": "log"} for p in LOGS}}
    with LocalCluster(partitions=8, directory=tmp_path / "cluster", settings=settings) as cluster:
        driver = Driver(cluster, tmp_path)
        with cluster.client(timeout=PATIENCE_S) as client:
            allowed, sent = threading.Semaphore(0), []

            def produce():
                # In steps with the faults, so that there is something to do in each of them.
                for start in range(0, EVENTS, 100):
                    if start % STEP == 0:
                        allowed.acquire()
                    by_log = {}
                    for p, key, amount in events[start : start + 100]:
                        by_log.setdefault(p, []).append(Record(b"%d" % amount, key))
                    client.submit_many(by_log, wait="durable")
                    sent.append(start)

            producing = threading.Thread(target=produce, daemon=True)
            producing.start()
            driver.start()
            try:
                for fault in faults:
                    before = counted_or(client)
                    allowed.release()
                    wait(driver, lambda before=before: counted_or(client) > before)
                    strike(fault, driver, cluster, chance)
                allowed.release()
                producing.join(PATIENCE_S)
                assert len(sent) == EVENTS // 100, "the producer did not come to its end"
                driver.finish()
            finally:
                if driver.process.poll() is None:
                    driver.kill()
            expected = {}
            for _, key, amount in events:
                n, total = expected.get(key, (0, 0))
                expected[key] = (n + 1, total + amount)
            found = dict(row for p in range(4) for row in client.scan(p))
            assert found == expected


def counted_or(client, otherwise=0):
    try:
        return counted(client)
    except LogboomError:
        return otherwise


def strike(fault, driver, cluster, chance):
    if fault == "driver":
        driver.kill()
        driver.start()
    elif fault == "worker":
        wait(driver, driver.workers)
        os.kill(chance.choice(driver.workers() or [driver.process.pid]), signal.SIGKILL)
    else:
        leader = cluster.leader()
        node = leader if fault == "leader" else chance.choice([n for n in cluster.nodes if n != leader])
        cluster.kill(node)
        cluster.restart(node)
