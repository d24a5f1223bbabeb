"""Runs over systems that are made up: who is measured how often, and what becomes of one that fails."""

import sys
from contextlib import nullcontext

import pytest

from bench import __main__ as program
from bench import runs as module
from bench.load import Load, Measured, NothingMeasured
from bench.runs import Plan, Runs
from bench.systems import Missing
from bench.systems.api import System
from bench.works import Goal, Work


class Cluster:
    nodes = ("n1", "n2", "n3")
    settings = "none"

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def wait_serving(self):
        pass

    def leader(self):
        return "n2"

    def pid(self, node):
        return int(node[1])

    def client_addresses(self):
        return (f"{self.name}:1",)

    def version(self):
        return "1.0"


SHAPES = {name: tuple(Load(name, (), concurrency=c) for c in (1, 2)) for name in ("etcd", "logboom")}
WORKS = [
    Work("bulk, log, committed", SHAPES, (Goal("commands_per_s", "etcd", at_least=3, kind="floor"),)),
    Work("bulk, kv, committed", {"logboom": (Load("logboom", (), machine="log"),), "etcd": SHAPES["etcd"]}),
]


@pytest.fixture
def world(monkeypatch, tmp_path):
    """What was run, in order; loads twice as wide are twice as fast."""
    ran = []

    def run(load, pids, *, leader):
        assert (load.endpoints, pids, leader) == ((f"{load.system}:1",), [1, 2, 3], 2)
        ran.append((load.system, load.concurrency, load.seconds))
        return Measured(load.concurrency * 1000.0, 1.0, 2.0, 3.0, 0.0, 900.0)

    monkeypatch.setattr(module.load, "run", run)
    monkeypatch.setattr(module, "works", lambda: WORKS)
    monkeypatch.setattr(module.failover, "measure", lambda _cluster, _prober, times: [100.0] * times)
    names = ("etcd", "logboom")
    monkeypatch.setattr(
        module, "SYSTEMS", {n: System(n, tmp_path.absolute, Cluster, None, lambda *_: nullcontext()) for n in names}
    )
    monkeypatch.setattr(module, "started", lambda name, _directory: Cluster(name))
    return ran


def plan(tmp_path, **changed):
    return Plan(tmp_path, ["etcd", "logboom"], **{"runs": 2, "seconds": 5.0, **changed})


def test_shapes_are_tried_once_and_what_is_equal_is_measured_once(world, tmp_path):
    runs = Runs(plan(tmp_path))
    runs.go()
    of_etcd = [each for each in world if each[0] == "etcd"]
    assert of_etcd == [("etcd", 1, 1.5), ("etcd", 2, 1.5), *[("etcd", 2, 5.0)] * 2]
    report = runs.report()
    assert report["versions"]["etcd"] == "1.0"
    assert report["settings"]["etcd"] == "none"
    assert report["leader_killed_ms"] == {"etcd": [100.0] * 6, "logboom": [100.0] * 14}
    assert [row["work"] for row in report["table"]] == [
        *["bulk, log, committed"] * 5,
        *["bulk, kv, committed"] * 5,
        "leader killed",
    ]


def test_without_trials_the_likely_best_shape_is_taken(world, tmp_path):
    runs = Runs(Plan(tmp_path, ["etcd"], ["log"], runs=1, trials=False))
    runs.go()
    assert world == [("etcd", 1, 5.0)]
    assert runs.report()["leader_killed_ms"] == {}


def test_a_shape_too_deep_to_measure_is_not_the_best(world, tmp_path, monkeypatch):
    run = module.load.run

    def too_deep(load, pids, *, leader):
        if load.concurrency == 2:
            raise NothingMeasured("nothing")
        return run(load, pids, leader=leader)

    monkeypatch.setattr(module.load, "run", too_deep)
    runs = Runs(Plan(tmp_path, ["etcd"], ["log"], runs=1))
    runs.go()
    assert runs.failed == {}
    assert world[-1] == ("etcd", 1, 5.0)


def test_a_peer_that_cannot_be_had_leaves_the_others_alone(world, tmp_path, monkeypatch):
    def missing():
        raise Missing("etcd: not found")

    system = System("etcd", missing, Cluster, None)
    monkeypatch.setitem(module.SYSTEMS, "etcd", system)
    runs = Runs(plan(tmp_path))
    runs.go()
    assert runs.report()["not_measured"] == {"etcd": "etcd: not found"}
    assert {name for name, _, _ in world} == {"logboom"}
    assert all("etcd" not in row["systems"] for row in runs.table())


def test_a_load_that_fails_leaves_the_others_alone(world, tmp_path, monkeypatch):
    run = module.load.run

    def fails(load, pids, *, leader):
        if load.machine == "log":
            raise RuntimeError("a client ended with status 1")
        return run(load, pids, leader=leader)

    monkeypatch.setattr(module.load, "run", fails)
    runs = Runs(plan(tmp_path))
    runs.go()
    assert runs.failed == {"logboom, bulk, kv, committed": "a client ended with status 1"}
    assert world.count(("logboom", 2, 5.0)) == 2
    assert len(runs.systems["logboom"].deaths) == 14


def test_a_cluster_that_fails_is_tried_again_in_the_next_run(world, tmp_path, monkeypatch):
    started, failures = module.started, iter([TimeoutError("no node leads")])

    def fails_once(name, directory):
        if name == "etcd" and (error := next(failures, None)):
            raise error
        return started(name, directory)

    monkeypatch.setattr(module, "started", fails_once)
    runs = Runs(plan(tmp_path))
    runs.go()
    assert runs.failed == {"etcd, loads, run 1": "no node leads"}
    assert world.count(("etcd", 2, 5.0)) == 1


def test_deaths_that_were_measured_count_though_a_later_one_fails(world, tmp_path, monkeypatch):
    def deaths(_cluster, _prober, times):
        yield 100.0
        raise TimeoutError("it does not come back")

    monkeypatch.setattr(module.failover, "measure", deaths)
    runs = Runs(Plan(tmp_path, ["etcd"], ["killed"], runs=2))
    runs.go()
    assert runs.systems["etcd"].deaths == [100.0, 100.0]
    assert set(runs.failed) == {"etcd, leader killed, run 1", "etcd, leader killed, run 2"}


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--systems", "logboom"], 0),  # nothing to compare with: no floor is missed
        (["--systems", "etcd,logboom", "--runs", "1"], 1),
        (["--systems", "etcd,logboom", "--no-floors"], 0),
        (["--systems", "redis"], 2),
        (["--systems", "oracle"], 2),
        (["--works", "nothing of the kind"], 2),
        (["--runs", "0"], 2),
    ],
)
def test_the_exit_status(world, tmp_path, monkeypatch, capsys, arguments, status):
    def missing():
        raise Missing("redis: not found")

    monkeypatch.setitem(module.SYSTEMS, "redis", System("redis", missing, Cluster, None))
    out = ["--out", str(tmp_path / "latest.json"), "--directory", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["bench", *arguments, *out])
    monkeypatch.setattr(program.signal, "signal", lambda *_: None)
    try:
        found = program.main()
    except SystemExit as ended:
        found = ended.code
    assert found == status, capsys.readouterr()
