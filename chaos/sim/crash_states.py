"""What may be on a disk after a power loss, given every operation before it (``chaos.sim.disk.Op``).

Each change that was not synced is there, or not, or torn at sectors, whatever became of the others; of the
names in a directory that were not synced a prefix is there. All choices are far too many, so ``states`` takes
the ones that break programs: all, none, all but one, one alone, prefixes, torn ones, sizes without data, and
some by chance.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from chaos.sim.inode import KEPT, LOST, Change, Image, Inode, Op, sectors
from chaos.sim.trees import is_in

TEARS = 3
"""Ways to tear each write."""


class State(NamedTuple):
    """One way in which it may have ended."""

    story: str
    image: Image


class _Part(NamedTuple):
    """A change, or sectors of it."""

    inode: int
    change: Change


class Choice(NamedTuple):
    """What of the changes that were not synced is there, in order, and how many operations on names."""

    story: str
    kept: Sequence[_Part]
    names: Mapping[str, int]


class CrashModel:
    """Fed with operations; tells the legal states after them."""

    def __init__(self, base: Image | None = None) -> None:
        self._files: dict[int, Inode] = {}
        """What is durable."""
        self._pending: list[_Part] = []
        self._names: dict[str, dict[str, int]] = {"/": {}}
        self._renamed: dict[str, list[Op]] = {}
        """Per directory, operations on names that are not durable."""
        self._ended: dict[str, list[str]] = {}
        """Per directory, those in it that were removed: there, and empty of what was removed durably, until a sync."""
        if base is not None:
            self._names.update({directory: {} for directory in base.directories})
            for number, (path, (content, size)) in enumerate(base.files.items(), 1):  # as SimDisk.of counts
                self._files[number] = Inode(number, content, size)
                directory, name = _split(path)
                self._names[directory][name] = number

    def feed(self, op: Op) -> None:
        """One more operation took effect."""
        if op.kind == "make_directory":
            parent = _split(op.path)[0]
            if op.path in self._ended.get(parent, ()):
                self._ended[parent].remove(op.path)
            self._names[op.path] = {}
            self._renamed.setdefault(parent, []).append(op)
        elif op.kind == "create":
            self._files[op.inode] = Inode(op.inode)
            self._renamed.setdefault(_split(op.path)[0], []).append(op)
        elif op.kind in ("rename", "remove"):
            self._renamed.setdefault(_split(op.path)[0], []).append(op)
        elif op.kind == "write":
            self._pending.append(_Part(op.inode, Change(op.offset, op.data, b"", 0, KEPT)))
        elif op.kind == "resize":
            self._pending.append(_Part(op.inode, Change(op.offset, None, b"", 0, KEPT)))
        elif op.kind in ("sync", "drop"):
            mine = [part for part in self._pending if part.inode == op.inode]
            self._pending = [part for part in self._pending if part.inode != op.inode]
            for part in mine if op.kind == "sync" else ():
                self._files[op.inode].redo(part.change)
        elif op.kind == "sync_directory":
            self._names[op.path] = self._after(op.path, len(self._renamed.get(op.path, ())))
            self._renamed.pop(op.path, None)
            for path in self._ended.pop(op.path, ()):
                for each in [name for name in self._names if name == path or name.startswith(f"{path}/")]:
                    del self._names[each]
                    self._renamed.pop(each, None)
        elif op.kind == "move_directory":
            tables: tuple[dict[str, Any], ...] = (self._names, self._renamed, self._ended)
            for table in tables:
                for each in [name for name in table if name == op.path or name.startswith(f"{op.path}/")]:
                    table[op.target + each.removeprefix(op.path)] = table.pop(each)
        elif op.kind == "remove_directory":
            self._ended.setdefault(_split(op.path)[0], []).append(op.path)

    def states(self, rng: random.Random, *, by_chance: int) -> Iterator[State]:
        """The states worth looking at; some of them equal each other."""
        for choice in self.choices(rng, by_chance=by_chance):
            yield self.state(choice)

    def state(self, choice: Choice) -> State:
        """What a choice leaves; while nothing more is fed."""
        return State(choice.story, self._image(choice.kept, choice.names))

    def choices(self, rng: random.Random, *, by_chance: int) -> Iterator[Choice]:
        """The same as ``states``, not worked out yet."""
        all_names = {directory: len(ops) for directory, ops in self._renamed.items()}
        everything = self._pending
        yield Choice("everything", everything, all_names)
        yield Choice("nothing", [], {})
        yield Choice("names alone", [], all_names)
        yield Choice("no name", everything, {})
        for directory, count in all_names.items():
            for kept in range(count):
                some = {**all_names, directory: kept}
                yield Choice(f"{kept} names in {directory}", everything, some)
                yield Choice(f"{kept} names in {directory} alone", [], some)
        for at, part in enumerate(everything):
            before, after = everything[:at], everything[at + 1 :]
            yield Choice(f"without change {at}", [*before, *after], all_names)
            yield Choice(f"change {at} alone", [part], all_names)
            yield Choice(f"{at} changes", before, all_names)
            for how, torn in _torn(part, rng):
                yield Choice(f"change {at} {how}", [*before, *torn, *after], all_names)
                yield Choice(f"change {at} {how}, the last", [*before, *torn], all_names)
        for number in range(by_chance if everything or all_names else 0):
            yield self._by_chance(rng, number)

    def _by_chance(self, rng: random.Random, number: int) -> Choice:
        kept: list[_Part] = []
        keep = rng.random()
        for part in self._pending:
            if rng.random() < keep:
                kept.append(part)
            elif rng.random() < keep and (torn := _torn(part, rng)):
                kept += rng.choice(torn)[1]
        names = {directory: rng.randint(0, len(ops)) for directory, ops in self._renamed.items()}
        return Choice(f"by chance {number}", kept, names)

    def _image(self, kept: Sequence[_Part], names: Mapping[str, int]) -> Image:
        changes: dict[int, list[Change]] = {}
        for part in kept:
            changes.setdefault(part.inode, []).append(part.change)
        files: dict[str, tuple[bytes, int]] = {}
        there = self._directories(names)
        for directory in there:
            for name, number in sorted(self._after(directory, names.get(directory, 0)).items()):
                inode = self._files[number]
                if number in changes:
                    inode = Inode(number, bytes(inode.content), inode.size)
                    for change in changes[number]:
                        inode.redo(change)
                files[f"{directory.rstrip('/')}/{name}"] = bytes(inode.content), inode.size
        return Image(there, files)

    def _directories(self, names: Mapping[str, int]) -> tuple[str, ...]:
        """But for those, and what is in them, whose making is not among what is there."""
        gone = [op.path for parent, ops in self._renamed.items() for op in ops[names.get(parent, 0) :] if _makes(op)]
        return tuple(path for path in self._names if not any(is_in(path, each) for each in gone))

    def _after(self, directory: str, count: int) -> dict[str, int]:
        """Names in a directory after so many of the operations on them."""
        names = self._names[directory]
        ops = self._renamed.get(directory, [])[:count]
        if ops:
            names = dict(names)
        for op in ops:
            name = _split(op.path)[1]
            if _makes(op):
                continue
            if op.kind == "create":
                names[name] = op.inode
            elif op.kind == "rename":
                names[_split(op.target)[1]] = names.pop(name)
            else:
                del names[name]
        return names


def crash_states(
    trace: Sequence[Op], *, base: Image | None = None, rng: random.Random, by_chance: int = 4
) -> Iterator[State]:
    """The states after all of ``trace``."""
    model = CrashModel(base)
    for op in trace:
        model.feed(op)
    yield from model.states(rng, by_chance=by_chance)


def fingerprint(image: Image) -> bytes:
    """Equal for equal images."""
    digest = blake2b(repr(image.directories).encode(), digest_size=16)
    for path, (content, size) in sorted(image.files.items()):
        shown = content.rstrip(b"\0")
        digest.update(b"%s\0%d\0%d\0" % (path.encode(), size, len(shown)))
        digest.update(shown)
    return digest.digest()


def _torn(part: _Part, rng: random.Random) -> list[tuple[str, list[_Part]]]:
    """The size without the data; the first sectors, the last ones, all but one: where to cut is chance."""
    change = part.change
    if change.new is None:
        return []
    size_alone = part._replace(change=change._replace(fate=LOST))
    ways = [("as a size", [size_alone])]
    pieces = [
        part._replace(change=change._replace(offset=at, new=data)) for at, data in sectors(change.offset, change.new)
    ]
    if len(pieces) > 1:
        for _ in range(TEARS):
            at = rng.randrange(1, len(pieces))
            hole = rng.randrange(len(pieces))
            ways.append((f"torn before sector {at}", pieces[:at]))
            ways.append((f"torn after sector {at}", pieces[at:]))
            ways.append((f"torn around sector {hole}", [*pieces[:hole], *pieces[hole + 1 :]]))
    return ways


def _makes(op: Op) -> bool:
    return op.kind == "make_directory"


def _split(path: str) -> tuple[str, str]:
    directory, _, name = path.rpartition("/")
    return directory or "/", name
