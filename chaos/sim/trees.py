"""The directories of a simulated disk: what is in one, and whole trees of them moved."""

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


def move(directories: dict[str, Directory], source: Path, target: Path) -> None:
    """With all that is below; durable at once."""
    for name in _below(directories, source):
        directories[str(target) + name.removeprefix(str(source))] = directories.pop(name)
    del directories[str(source.parent)].directories[source.name]
    directories[str(target.parent)].directories[target.name] = None


def _below(directories: dict[str, Directory], path: Path) -> list[str]:
    return [name for name in directories if name == str(path) or name.startswith(f"{path}/")]
