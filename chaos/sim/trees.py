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


def depth(path: Path) -> int:
    return len(path.parts)


def order(path: Path) -> tuple[int, Path]:
    """By depth first."""
    return depth(path), path


def move(directories: dict[str, Directory], source: Path, target: Path) -> None:
    """With all that is below; durable at once."""
    for name in _below(directories, source):
        directories[str(target) + name.removeprefix(str(source))] = directories.pop(name)
    del directories[str(source.parent)].directories[source.name]
    directories[str(target.parent)].directories[target.name] = None


def lose(directories: dict[str, Directory], path: str) -> None:
    """It is gone, with all that is below."""
    for name in _below(directories, Path(path)):
        del directories[name]
    parent, _, last = path.rpartition("/")
    directories[parent or "/"].directories.pop(last, None)


def _below(directories: dict[str, Directory], path: Path) -> list[str]:
    return [name for name in directories if is_in(name, str(path))]


def is_in(name: str, path: str) -> bool:
    """At ``path`` or below."""
    return name == path or name.startswith(f"{path}/")
