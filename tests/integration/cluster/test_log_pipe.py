"""A real node whose log goes into a pipe that somebody holds open and does not read."""

from __future__ import annotations

import json
import os
import re
import urllib.request
from pathlib import Path

import pytest

from logboom import Put
from logboom.errors import LogboomError
from logboom.testing import LocalCluster

pytestmark = pytest.mark.process


def test_a_node_goes_on_though_nobody_reads_its_log_and_says_what_was_lost(tmp_path: Path) -> None:
    settings = {"node.log_level": "debug", "node.log_queue_bytes": 100_000}
    cluster = LocalCluster(nodes=1, partitions=1, directory=tmp_path, settings=settings, http=True)
    os.mkfifo(cluster.log("n1"))
    reading = os.open(cluster.log("n1"), os.O_RDONLY | os.O_NONBLOCK)
    try:
        with cluster, cluster.client(timeout=20) as boom:
            for _ in range(1_500):  # each leaves a line of 200 bytes
                with pytest.raises(LogboomError):
                    boom.admin("freeze", 99, node="n1")
            assert boom.submit(0, [Put(b"k", b"v")]).global_index == 1
            with urllib.request.urlopen(cluster.url("n1", "/metrics"), timeout=20) as answer:
                (shown,) = re.findall(r"^logboom_log_lines_lost_total (\S+)$", answer.read().decode(), re.MULTILINE)
            assert float(shown) > 0
            os.set_blocking(reading, True)
            with os.fdopen(os.dup(reading)) as pipe:
                rows = (json.loads(line) for line in pipe)
                told = next(row for row in rows if row["event"] == "log_lines_lost")
            assert told["lines"] > 0
    finally:
        os.close(reading)
