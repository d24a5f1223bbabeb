"""The directories of a simulated disk: what is in one, and whole trees of them moved or removed."""

from __future__ import annotations

from pathlib import Path

from chaos.sim.inode import Inode


class Directory:
    """Names, and what became of them since they were synced."""

    __slots__ = ("directories", "files", "pending")

    def __init__(self) -> None:
        self.files: dict[str, Inode] = {}
        self.directories: dict[str, None] = {}
        self.pending: list[list[tuple[str, Inode | None, Inode | None]]] = []
        """Per operation: name, what it meant before, what it means now."""


def assign(files: dict[str, Inode], name: str, inode: Inode | None) -> None:
    """None: the name goes."""
    if inode is None:
        files.pop(name, None)
    else:
        files[name] = inode


def move(directories: dict[str, Directory], source: Path, target: Path) -> None:
    """With all that is below; durable at once."""
    for name in _below(directories, source):
        directories[str(target) + name.removeprefix(str(source))] = directories.pop(name)
    del directories[str(source.parent)].directories[source.name]
    directories[str(target.parent)].directories[target.name] = None


def remove(directories: dict[str, Directory], path: Path) -> list[Inode]:
    """With all that is below; durable at once. Returns the files."""
    gone = [inode for name in _below(directories, path) for inode in directories.pop(name).files.values()]
    directories[str(path.parent)].directories.pop(path.name, None)
    return gone


def _below(directories: dict[str, Directory], path: Path) -> list[str]:
    return [name for name in directories if name == str(path) or name.startswith(f"{path}/")]
