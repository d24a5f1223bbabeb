"""Habits of the house that no linter holds."""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Iterator

import hypothesis
import pytest

from tests import conftest
from tests.tidy.tree import ROOT, tracked

DOMAIN = ("ports", "raftlog", "partitions", "dispatcher", "snapshots", "server", "chaos", "bench")
CORES = ("raftlog", "partitions", "dispatcher", "snapshots")
PRODUCTION = ("logboom", "ports", *CORES, "server")

MODULE_LINES_MAX = 450
EXECUTES_ON_READ = {"pickle", "cloudpickle", "marshal", "shelve", "dill", "joblib"}
NOT_FROM_PORTS = {"asyncio.sleep", "os.urandom"}
CORES_DO_WITHOUT = {"time", "random", "socket", "secrets", "uuid", "subprocess"}
READS_A_CLOCK = {"now", "utcnow", "today"}


def modules(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    for path in tracked():
        name = path.relative_to(ROOT).as_posix()
        if path.suffix == ".py" and name.split("/")[0] in folders:
            yield name, ast.parse(path.read_bytes(), filename=name)


def texts() -> Iterator[tuple[str, str]]:
    for path in tracked():
        try:
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [node.module]
    return []


def test_modules_stay_small() -> None:
    long = {
        path.relative_to(ROOT).as_posix(): lines
        for path in tracked()
        if path.suffix == ".py" and (lines := len(path.read_bytes().splitlines())) > MODULE_LINES_MAX
    }
    assert not long, "split these, the important thing first"


def test_invariants_survive_optimisation() -> None:
    asserts = [
        f"{name}:{node.lineno}"
        for name, tree in modules(*PRODUCTION)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert)
    ]
    assert not asserts, "python -O strips these: use ports.invariant.invariant"


def test_a_docstring_belongs_to_one_name() -> None:
    """One that goes on below the next name cannot be read alone: as a row of docs/configuration.md, say."""
    open_ended = [
        f"{name}:{node.lineno}"
        for name, tree in modules(*PRODUCTION)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if node.value.value.rstrip().endswith((",", ";", ":"))
    ]
    assert not open_ended


def test_nothing_executes_what_it_reads() -> None:
    found = [
        f"{name}:{node.lineno} {module}"
        for name, tree in modules("logboom", *DOMAIN)
        for node in ast.walk(tree)
        for module in imported(node)
        if module.split(".")[0] in EXECUTES_ON_READ
    ]
    assert not found


def test_tests_take_nothing_from_each_other() -> None:
    """What several use stands in a module beside them: whoever changes a test changes that one alone."""
    taken = re.compile(r"^ *(?:from|import) (tests[\w.]*\.test_\w+|tests[\w.]* import .*\btest_\w+)", re.MULTILINE)
    found = [
        f"{name}: {other}"
        for name, text in texts()
        if name.startswith("tests/") and name.endswith(".py")
        for other in taken.findall(text)
        if other.replace(".", "/") != name.removesuffix(".py")
    ]
    assert not found


def test_cores_take_time_and_chance_from_ports() -> None:
    found = []
    for name, tree in modules(*CORES):
        for node in ast.walk(tree):
            taken = [module for module in imported(node) if module.split(".")[0] in CORES_DO_WITHOUT]
            if isinstance(node, ast.Attribute):
                owner = node.value.id if isinstance(node.value, ast.Name) else ""
                if f"{owner}.{node.attr}" in NOT_FROM_PORTS or (
                    owner in {"datetime", "date"} and node.attr in READS_A_CLOCK
                ):
                    taken.append(f"{owner}.{node.attr}")
            found += [f"{name}:{getattr(node, 'lineno', 0)} {what}" for what in taken]
    assert not found


def test_what_is_there_is_not_asked_of_paths() -> None:
    """From Python 3.14 on ``Path.exists`` takes whatever a disk answers for "not there"."""
    found = [
        f"{name}:{node.lineno}"
        for name, tree in modules("ports", *CORES, "server", "logboom")
        if name.split("/")[0] != "logboom" or name == "logboom/certs.py"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not (node.args or node.keywords)
        if node.func.attr == "exists"
    ]
    assert not found, "Disk.exists, or Path.stat"


@pytest.mark.parametrize("module", ["node", "opening"])
def test_a_node_takes_the_outside_from_its_world(module: str) -> None:
    """It knows no clock, file or socket, and none of the ports' real implementations."""
    tree = dict(modules("server"))[f"server/{module}.py"]
    taken = [module for node in ast.walk(tree) for module in imported(node)]
    outside = {"os", "fcntl", "threading", "concurrent", *CORES_DO_WITHOUT}
    found = [m for m in taken if m.split(".")[0] in outside or m.endswith("_os") or m == "partitions.machines.kv_file"]
    assert not found


@pytest.mark.parametrize("folder", DOMAIN)
def test_every_folder_opens_with_its_design(folder: str) -> None:
    if not any(name.startswith(f"{folder}/") for name, _ in modules(folder)):
        pytest.skip(f"no {folder}/ yet")
    assert (ROOT / folder / "DESIGN.md").is_file()


def test_no_registry_addresses() -> None:
    address = re.compile(
        r"--(extra-)?index-url|--find-links|https?://[^\s\"']*(/simple\b|/packages/|registry|pypi\.)", re.IGNORECASE
    )
    lists = re.compile(
        r"(^|/)(requirements/|Dockerfile|docker-compose|.*\.(toml|cfg|ini|lock|ya?ml|txt)$|Makefile|scripts/)"
    )
    found = [
        f"{name}:{number}"
        for name, text in texts()
        if lists.search(name)
        for number, line in enumerate(text.splitlines(), 1)
        if address.search(line)
    ]
    assert not found, "lock versions without addresses; whoever installs uses their own registry"


def test_locks_are_exact_and_hashed() -> None:
    for path in sorted((ROOT / "requirements").glob("*.txt")):
        text = path.read_text().replace("\\\n", " ")
        for line in text.splitlines():
            if line.strip() and not line.startswith("#"):
                assert re.match(r"[\w.\[\]-]+==[\w.]+ ", line), f"{path.name}: {line[:60]}"
                assert "--hash=sha256:" in line, f"{path.name}: {line[:60]}"


def test_the_tree_stands_alone() -> None:
    outside = "../" + "shared"
    assert not [name for name, text in texts() if outside in text]


def test_no_example_has_a_deadline() -> None:
    """On a busy machine one in thousands takes longer than any; of the same seed the next run does not."""
    assert hypothesis.settings().deadline is None
    assert hypothesis.HealthCheck.too_slow in hypothesis.settings().suppress_health_check


def test_whoever_looks_for_garbage_looks_past_modules_and_tests() -> None:
    """Else each of hundreds of tests that do looks through a million objects, for a third of a second."""
    gc.unfreeze()
    conftest.pytest_collection_finish()
    assert gc.get_freeze_count() > 10_000
