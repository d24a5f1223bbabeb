"""`logboom top` beside real nodes, of which one dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from logboom import Put
from logboom.testing import LocalCluster

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.process
Frame = dict[str, Any]


@contextmanager
def top(endpoints: str, *how: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "logboom", "top", *how, "--endpoints", endpoints]
    with subprocess.Popen(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def frame_that(process: subprocess.Popen[str], holds: Callable[[Frame], object]) -> Frame:
    """The first; pytest's time-out ends it otherwise."""
    assert process.stdout is not None
    for line in process.stdout:
        frame: Frame = json.loads(line)
        if holds(frame):
            return frame
    raise AssertionError(process.communicate()[1])


def test_it_shows_what_is_done_and_goes_on_when_the_leader_dies() -> None:
    with LocalCluster(nodes=3, partitions=2) as cluster, cluster.client() as boom:
        with top(cluster.endpoints, "-o", "jsonl", "--every", "200ms") as shown:
            first = frame_that(shown, lambda frame: frame["leader"])
            assert [row["node"] for row in first["nodes"]] == ["n1", "n2", "n3"]
            receipt = boom.submit(1, [Put(b"k%d" % k, b"v" * 1_000) for k in range(500)])
            boom.barrier(receipt.global_index, scope="all")
            busy = frame_that(shown, lambda frame: frame["commands_per_s"])
            assert busy["partitions"][0]["partition"] == 1
            assert busy["partitions"][0]["log_index"] == 500
            dead = first["leader"]
            cluster.kill(dead)
            other = frame_that(shown, lambda frame: frame["leader"] not in (dead, None) and frame["healthy"])
            assert {row["node"]: row["role"] for row in other["nodes"]}[dead] == "unreachable"
            cluster.restart(dead)
            frame_that(shown, lambda frame: all("error" not in row for row in frame["nodes"]))
            shown.send_signal(signal.SIGINT)
            _, err = shown.communicate(timeout=60)
            assert (shown.returncode, err) == (0, "")
        quiet = subprocess.run(
            [sys.executable, "-m", "logboom", "top", "-o", "json", "--every", "100ms"],
            cwd=ROOT, env=os.environ | {"LOGBOOM_ENDPOINTS": cluster.endpoints}, capture_output=True, text=True,
            timeout=60, check=True,
        )  # fmt: skip
        seen = json.loads(quiet.stdout)
        assert all(row["memory_bytes"] > 1 << 20 and row["disk_free_bytes"] > 0 for row in seen["nodes"])
        usage = boom.status(node=other["leader"])["usage"]
        assert (usage["applied_records"], usage["applied_bytes"] > 500_000) == (500, True)
