"""Golden directories as they are kept: ``<name>.tar.xz``, all nodes' data or a backup; ``<name>.json``, about it."""

from __future__ import annotations

import io
import json
import lzma
import struct
import tarfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from logboom.batch_layout import HEAD
from raftlog.journal import journal_base
from snapshots import meta

HERE: Final = Path(__file__).resolve().parent
SUFFIX: Final = ".tar.xz"
NUMBERED: Final = {
    ".journal": "journal",
    ".log": "segment",
    ".idx": "index",
    ".set": "set",
    ".states": "states",
    ".batches": "batches",
    ".nothing": "nothing",
    ".void": "void",
    "base": "journal base",
    "newest": "newest",
    "places": "places",
}
"""Files that begin with six bytes of their own, and a format number of two."""


class Golden(NamedTuple):
    """One that is kept."""

    name: str
    folder: Path = HERE

    @property
    def archive(self) -> Path:
        return self.folder / f"{self.name}{SUFFIX}"

    @property
    def page(self) -> Path:
        return self.folder / f"{self.name}.json"

    def about(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.page.read_text())
        return found

    def unpack(self, target: Path) -> None:
        """``<target>/<node>/data``, as ``LocalCluster`` has them; or ``<target>/backup``."""
        with tarfile.open(self.archive, "r:xz") as archive:
            for entry in archive:
                path, file = target / entry.name, archive.extractfile(entry)
                assert file is not None, f"{entry.name} is no file"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(file.read())

    def keep(self, cluster: Path, about: dict[str, Any]) -> None:
        """Of a stopped cluster's directory, or what a backup is in. The same files are the same archive."""
        plain = io.BytesIO()
        with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for path in data_files(cluster):
                entry = tarfile.TarInfo(path.relative_to(cluster).as_posix())
                entry.size, entry.mode = path.stat().st_size, 0o600
                with path.open("rb") as file:
                    archive.addfile(entry, file)
        self.archive.write_bytes(lzma.compress(plain.getvalue(), preset=9 | lzma.PRESET_EXTREME))
        about = about | {"formats": formats(cluster)}
        self.page.write_text(json.dumps(about, indent=2, sort_keys=True) + "\n")


def all_kept() -> list[Golden]:
    return [Golden(path.name.removesuffix(SUFFIX)) for path in sorted(HERE.glob(f"*{SUFFIX}"))]


def data_files(cluster: Path) -> Iterator[Path]:
    for path in sorted([*cluster.glob("n*/data/**/*"), *cluster.glob("backup/**/*")]):
        if path.is_file() and path.name != "lock":
            yield path


def formats(cluster: Path) -> dict[str, list[int]]:
    """Which numbers the files of all nodes have, and which flags their batches."""
    found: dict[str, set[int]] = defaultdict(set)
    for path in data_files(cluster):
        raw = path.read_bytes()
        if path.name == "manifest.json":
            found["manifest"].add(json.loads(raw)["format"])
        if path.name == "backup.json":
            found["backup"].add(json.loads(raw)["format"])
        kind = NUMBERED.get(path.suffix) or NUMBERED.get(path.name)
        if kind is not None:
            found[kind] |= set(struct.unpack_from("<H", raw, 6))
        if kind == "set":
            found["parent state"].add(meta.decode(raw, path=str(path)).parent[0])
        if kind == "journal base":
            owner = journal_base.HEADER.unpack_from(raw)[2]
            found["parent state"].add(journal_base.decode(raw, cluster=owner, path=str(path)).base.state[0])
        if kind == "segment":
            found["batch flags"] |= set(flags(raw))
    return {kind: sorted(numbers) for kind, numbers in sorted(found.items())}


def flags(segment: bytes) -> Iterator[int]:
    """Of each batch in there: what looks like a header, looks like one in the next release, too."""
    at = segment.find(b"LBB1")
    while 0 <= at <= len(segment) - HEAD.size:
        yield struct.unpack_from("<H", segment, at + 6)[0]
        at = segment.find(b"LBB1", at + 1)
