"""Runs targets under atheris: one process each, one after the other, and says what came of it.

A process of its own, because libFuzzer ends the one that it runs in, and because what is fuzzed has to be
imported under atheris for its coverage to be seen.
"""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

KEPT: Final = Path(".fuzz")
INSTRUMENTED: Final = ["logboom", "ports", "raftlog", "partitions", "dispatcher", "server", "tomllib"]
INPUT_SECONDS: Final = 10
MEMORY_MIB: Final = 768
"""What a target's process may take beyond what it has when it begins."""
FOUND: Final = re.compile(r"^(crash|oom|timeout|slow-unit)-[0-9a-f]+$")
STATUS: Final = re.compile(r"^#\d+\s.*\bft: (\d+)", re.MULTILINE)
EXECUTIONS: Final = re.compile(r"stat::number_of_executed_units:\s*(\d+)")


class Outcome(NamedTuple):
    """What became of one target."""

    executions: int
    features: int
    found: list[Path]
    story: str


def run(name: str, *, seconds: int, seed: int) -> Outcome:
    """One target for ``seconds``, in a process of its own."""
    home = KEPT / name
    (home / "corpus").mkdir(parents=True, exist_ok=True)
    begun = time.time()
    command = [sys.executable, "-m", "chaos.fuzz", "child", name, "--seconds", str(seconds), "--seed", str(seed)]
    log = home / "log"
    with log.open("wb") as out:
        try:
            code = subprocess.run(command, stdout=out, stderr=out, timeout=seconds + 60, check=False).returncode
        except subprocess.TimeoutExpired:
            code = -1
    text = log.read_text(errors="replace")
    found = [path for path in sorted(home.iterdir()) if FOUND.match(path.name) and path.stat().st_mtime >= begun - 1]
    executions, features = EXECUTIONS.search(text), STATUS.findall(text)
    failed = bool(code) or executions is None
    return Outcome(
        int(executions[1]) if executions else 0,
        int(features[-1]) if features else 0,
        [path for path in found if failed or not path.name.startswith("slow-unit")],
        _story(text) if failed else "",
    )


def _story(log: str) -> str:
    """The exception if there is one, else the end of the log."""
    _, uncaught, rest = log.partition("=== Uncaught Python exception: ===")
    lines = [line for line in (rest if uncaught else log).splitlines() if line.strip()]
    if uncaught:
        end = next((at for at, line in enumerate(lines) if line.startswith("==")), len(lines))
        lines = lines[:end]
        return "\n".join([lines[0], *lines[-8:]] if len(lines) > 9 else lines)
    return "\n".join(lines[-8:])


def child(name: str, *, seconds: int, seed: int) -> None:
    """Ends the process."""
    import atheris

    with atheris.instrument_imports(include=INSTRUMENTED):
        from chaos.fuzz.target import INPUT_BYTES_MAX, quiet
        from chaos.fuzz.targets import TARGETS
    target, home = TARGETS[name], KEPT / name
    quiet()
    for number, each in enumerate(target.seeds()):
        (home / "corpus" / f"seed-{number:03d}").write_bytes(each)
    _bound_memory()
    options = {
        "max_total_time": seconds,
        "timeout": INPUT_SECONDS,
        "rss_limit_mb": 2 * MEMORY_MIB,
        "max_len": INPUT_BYTES_MAX,
        "seed": seed,
        "artifact_prefix": f"{home}/",
        "print_final_stats": 1,
        "report_slow_units": INPUT_SECONDS // 2,
    }
    arguments = [f"-{option}={value}" for option, value in options.items()]
    atheris.Setup([sys.argv[0], *arguments, str(home / "corpus")], target.one_input)
    atheris.Fuzz()


def _bound_memory() -> None:
    """Whoever sets aside what a length field claims gets a MemoryError, even if it is never touched."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_MIB * (1 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def installed() -> bool:
    """The fuzzer itself; nothing else of the project needs it."""
    return find_spec("atheris") is not None
