"""What users install: the built wheel, in an environment of its own."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SERVER_FOLDERS = ("ports", "raftlog", "partitions", "dispatcher", "server")


def run(*command: str | Path, **env: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LOGBOOM", "VIRTUAL"))}
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False, env=clean | env, cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", out],
        cwd=ROOT, check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    (built,) = out.glob("logboom-*.whl")
    return built


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel; its dependencies are lent by the one that runs the tests."""
    venv = tmp_path_factory.mktemp("installed") / "venv"
    run(sys.executable, "-m", "venv", venv)
    python = venv / "bin" / "python"
    run(python, "-m", "pip", "install", "-qq", "--no-deps", "--no-index", str(wheel))
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    # Appended, so that the wheel's logboom comes first; a .pth inside a lent folder is not followed.
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_only_logboom_lands_in_site_packages_and_what_spark_finds_it_by(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"logboom", "pyspark_logboom.py"}


def test_the_image_is_made_of_enough(wheel: Path, tmp_path: Path) -> None:
    """.dockerignore lets through what it names. Found by `make compose-test`: no image could be built any more."""
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        for path in ROOT.glob(line[1:]) if line.startswith("!") else ():
            to = tmp_path / path.relative_to(ROOT)
            to.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                shutil.copytree(path, to, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(path, to)
    build = sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "out"
    done = subprocess.run(build, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = (tmp_path / "out").glob("logboom-*.whl")
    assert sorted(zipfile.ZipFile(built).namelist()) == sorted(zipfile.ZipFile(wheel).namelist())


@pytest.mark.parametrize("folder", SERVER_FOLDERS)
def test_the_server_rides_inside(wheel: Path, folder: str) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    shipped = {name.removeprefix("logboom/_server/") for name in names if name.startswith(f"logboom/_server/{folder}/")}
    here = {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*.py")}
    assert here
    assert {name for name in shipped if name.endswith(".py")} == here


def test_nothing_foreign_is_shipped(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if re.search(r"(^|/)(tests?|requirements|\.ci|\.venv|__pycache__)/", name)]
    assert [name for name in names if name.endswith("licenses/LICENSE")]


def test_pysyncobj_is_pinned_and_server_only(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    message = email.message_from_bytes(archive.read(metadata))
    needs = message.get_all("Requires-Dist") or []
    assert [need for need in needs if need.startswith("pysyncobj")] == ["pysyncobj==0.3.17; extra == 'server'"]
    assert message["License-Expression"] == "Apache-2.0"


def test_the_installed_wheel_imports_its_own_files(installed: Path) -> None:
    where = run(installed, "-c", "import logboom; print(logboom.__file__)").strip()
    assert Path(where).is_relative_to(installed.parents[1])


def test_the_installed_command_line_runs(installed: Path) -> None:
    if not (ROOT / "logboom" / "cli").is_dir() and not (ROOT / "logboom" / "cli.py").is_file():
        pytest.skip("no command line yet")
    out = run(installed.parent / "logboom", "--help")
    for command in ("node", "local", "demo", "submit", "get", "scan", "tail", "barrier", "status", "certs"):
        assert re.search(rf"^\s+{command}\b", out, re.MULTILINE), command


def test_the_server_imports_from_the_wheel(installed: Path) -> None:
    script = (
        "import pathlib, sys, logboom; root = pathlib.Path(logboom.__file__).parent / '_server';"
        "sys.path.insert(0, str(root)); import server.main; print(server.main.__file__)"
    )
    assert "/logboom/_server/server/main.py" in run(installed, "-c", script)
