"""Coverage-guided fuzzing of everything that decodes bytes from outside or from disk.

    make fuzz                                every target for 20 s
    make fuzz FUZZ_SECONDS=1200              longer
    make fuzz TARGET=batch                   one of them
    python -m chaos.fuzz list                what there is
    python -m chaos.fuzz replay batch FILE   an input again, without the fuzzer

What makes a target fail lies in .fuzz/<target>/ afterwards, beside its corpus, which the next run goes on
from, and the log. A failure is any exception but the decoder's own typed errors, a property that does not
hold, more than 10 s or 768 MiB for one input.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

from chaos.fuzz import run


def main() -> int:
    if len(sys.argv) > 1 and sys.argv[1] == "child":  # what ``run`` starts
        _child(sys.argv[2:])
        return 0
    arguments = _parser().parse_args()
    if arguments.command == "list":
        return _list()
    if arguments.command == "replay":
        return _replay(arguments.target, arguments.file)
    return _run(arguments.target, arguments.seconds, arguments.seed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m chaos.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the targets")
    fuzz = commands.add_parser("run", help="fuzz all targets, or one, one after the other")
    fuzz.add_argument("target", nargs="?", help="only this one")
    fuzz.add_argument("--seconds", type=int, default=20, help="for each target (default 20)")
    fuzz.add_argument("--seed", type=int, default=None, help="of the fuzzer; by default another one every time")
    replay = commands.add_parser("replay", help="run one target on one file")
    replay.add_argument("target")
    replay.add_argument("file", type=Path)
    return parser


def _child(rest: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    parser.add_argument("--seconds", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args(rest)
    run.child(arguments.target, seconds=arguments.seconds, seed=arguments.seed)


def _list() -> int:
    from chaos.fuzz.targets import TARGETS

    for target in TARGETS.values():
        print(f"{target.name:14} {target.about}")
    return 0


def _known(name: str | None) -> list[str] | None:
    from chaos.fuzz.targets import TARGETS

    if name is None:
        return list(TARGETS)
    if name in TARGETS:
        return [name]
    print(f"fuzz: no target {name}; there are {', '.join(TARGETS)}", file=sys.stderr)
    return None


def _replay(name: str, file: Path) -> int:
    from chaos.fuzz.target import quiet
    from chaos.fuzz.targets import TARGETS

    if _known(name) is None:
        return 2
    quiet()
    TARGETS[name].one_input(file.read_bytes())
    print(f"fuzz: {name} takes {file} as it should")
    return 0


def _run(target: str | None, seconds: int, seed: int | None) -> int:
    names = _known(target)
    if names is None:
        return 2
    if not run.installed():
        print("fuzz: atheris is not installed; `make fuzz` does that", file=sys.stderr)
        return 2
    seed = random.randrange(1, 1 << 31) if seed is None else seed
    print(f"fuzz: {len(names)} targets, {seconds} s each, seed {seed}", flush=True)
    failed = []
    for name in names:
        outcome = run.run(name, seconds=seconds, seed=seed)
        crashes = len(outcome.found) or int(bool(outcome.story))
        print(
            f"{name:14} {outcome.executions:>10,} executions  {outcome.features:>6,} features  {crashes} crashes",
            flush=True,
        )
        if crashes:
            failed.append(name)
            print(outcome.story)
            for path in outcome.found:
                print(f"again: python -m chaos.fuzz replay {name} {path}", flush=True)
            if not outcome.found:
                print(f"log: {run.KEPT / name / 'log'}", flush=True)
    if failed:
        print(f"fuzz: failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
