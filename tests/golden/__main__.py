"""Makes golden directories: ``scripts/golden NAME [--from COMMIT] [--backups]``.

The nodes of that commit write them (of this checkout, if none is said): NAME, and NAME-restored, which is another
history of the same cluster, if that release knows of such; of nodes, or of backups. What there is under these names
is replaced.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from chaos.upgrade import ROOT, Broken, unpack
from tests.golden.keeping import HERE, Golden

MADE = {"cluster": "", "first": "", "restored": "-restored"}
PROGRAMS = {False: "writing.py", True: "writing_backups.py"}


def write(source: Path, directory: Path, program: str) -> None:
    """Have the code in ``source`` write."""
    environment = os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{HERE}"}
    done = subprocess.run([sys.executable, "-P", HERE / program, directory], cwd=source, env=environment, check=False)
    if done.returncode:
        raise Broken(f"{source} could not write: what its nodes said is in {directory}/*/n*/node.log")


def described(ref: str) -> str:
    """A commit and its day."""
    words = ["git", "-C", str(ROOT), "log", "-1", "--date=short", "--format=%h %ad", ref]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def make(name: str, ref: str | None, work: Path, program: str) -> list[Golden]:
    """Raises Broken."""
    source = ROOT
    if ref is not None:
        source = work / "source"
        unpack(ref, source)
    write(source, work, program)
    made = []
    for folder, suffix in MADE.items():
        page = work / folder / "golden.json"
        if page.exists():
            golden = Golden(name + suffix)
            golden.keep(work / folder, {"written by": described(ref or "HEAD")} | json.loads(page.read_text()))
            made.append(golden)
    return made


def main() -> int:
    """Exit status 0: they are there."""
    parser = argparse.ArgumentParser(prog="scripts/golden", description=__doc__.split("\n", 2)[2])
    parser.add_argument("name", help="of the release, or of what it is the last, or first, of")
    parser.add_argument("--from", dest="ref", metavar="COMMIT", help="whose nodes write; else those of this checkout")
    parser.add_argument(
        "--backups", action="store_true", help="directories of `logboom backup` in place of nodes' data"
    )
    arguments = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="logboom-golden-"))
    try:
        made = make(arguments.name, arguments.ref, work, PROGRAMS[arguments.backups])
    except Broken as error:
        print(error, file=sys.stderr)
        return 1
    shutil.rmtree(work)
    for golden in made:
        print(f"{golden.archive.relative_to(ROOT)}: {golden.archive.stat().st_size // 1024} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
