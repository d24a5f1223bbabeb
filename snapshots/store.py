"""The snapshot sets of one node: ``snapshots/<global index, 20 digits>.set`` and ``.states``. Blocking.

A set is there as soon as its ``.set`` is, and that is made last (written aside, synced, renamed), when
``.states`` is durable with its name. It goes first, too. So whatever a crash leaves, a set is whole or is
none; what belongs to no set is removed at the next start.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from logboom.errors import CorruptData, IncompatibleVersion, IndexCompacted, Unavailable
from logboom.types import GlobalLogIndex
from ports.disk import Disk, File
from ports.invariant import invariant
from ports.scrub import UNREADABLE, Piece, Pieces, twice, unreadable_is_damage
from snapshots.meta import SetMeta, decode, encode
from snapshots.states import StatesWriter, Written, check_header, scrub_states, verify_states, whole_bytes

OWN_STATES: Final = "states", "states.partial"
"""Not what comes of them piece by piece, from another node."""
NAME: Final = re.compile(r"([0-9]{20})\.(set|set\.new|states|states\.partial|states\.fetch)")


class Damaged(NamedTuple):
    """A set that cannot be used. Its files are left as they are, until a newer set takes its place."""

    global_index: GlobalLogIndex
    error: CorruptData


class SnapshotStore:
    """See the module. Any thread may call anything: changes take turns, and a set is made by one at a time.

    An OSError is final, as ports.disk says.
    """

    def __init__(self, disk: Disk, directory: Path) -> None:
        """Look what is there, remove what a crash left. Raises IncompatibleVersion, and then has changed nothing."""
        self._disk = disk
        self._directory = directory
        self._changing = threading.RLock()
        self._claimed: set[GlobalLogIndex] = set()
        """Sets that are being written, or taken over from elsewhere: nobody else writes their files meanwhile."""
        self.damaged: tuple[Damaged, ...] = ()
        disk.make_directory(directory)
        found: dict[GlobalLogIndex, set[str]] = {}
        for match in filter(None, map(NAME.fullmatch, disk.list(directory))):
            found.setdefault(GlobalLogIndex(int(match[1])), set()).add(match[2])
        self._sets = self._look([index for index, kinds in sorted(found.items()) if "set" in kinds])
        self._remove_leftovers(found)

    def sets(self) -> list[SetMeta]:
        """Those that are complete, ascending by global index."""
        return list(self._sets)

    @property
    def newest(self) -> SetMeta | None:
        """The last of them."""
        return self._sets[-1] if self._sets else None

    def get(self, global_index: GlobalLogIndex) -> SetMeta:
        """Raises IndexCompacted if there is no such set."""
        for meta in self._sets:
            if meta.global_index == global_index:
                return meta
        first = self._sets[0].global_index if self._sets else GlobalLogIndex(0)
        raise IndexCompacted(f"there is no snapshot set {global_index} here", first=first)

    def begin(self, global_index: GlobalLogIndex, pace: Callable[[int], None] | None = None) -> StatesWriter:
        """A new set of that index, which no other has; ``complete`` or ``abandon`` follows. ``pace``: StatesWriter.

        Raises Unavailable if somebody else has just made it, or is making it.
        """
        self._claim(global_index)
        try:
            self._check_free(global_index)
            return StatesWriter(self.receive(global_index), global_index, pace)
        except BaseException:
            self._claimed.discard(global_index)
            raise

    def complete(self, writer: StatesWriter, meta: SetMeta) -> None:
        """Finish the states; on return the set is there, durably. ``meta`` says of them what ``finish`` returns."""
        written = writer.finish()
        said = Written(meta.global_index, meta.partitions, meta.states_bytes, meta.states_digest)
        invariant(said == written, "a snapshot set that says other things than were written")
        raw = encode(meta)
        writer.close()
        self._publish(raw, meta, self.partial_path(meta.global_index))
        self._claimed.discard(meta.global_index)

    def abandon(self, writer: StatesWriter) -> None:
        """Close it, and remove what it wrote: another node's of that index may be coming piece by piece."""
        try:
            writer.close()
            self._remove(writer.global_index, OWN_STATES)
        finally:  # what is left of it takes the next one's place, or goes at the next start
            self._claimed.discard(writer.global_index)

    def receive(self, global_index: GlobalLogIndex) -> File:
        """An empty file for the states of a set from elsewhere; close it, then ``adopt`` or ``discard``.

        A damaged set of that index makes room.
        """
        invariant(
            all(meta.global_index != global_index for meta in self._sets), "there is a set {} already", global_index
        )
        self._make_room(global_index)
        file = self._disk.open(self.partial_path(global_index), create=True)
        if file.size():
            file.truncate(0)
        return file

    def partial_path(self, global_index: GlobalLogIndex) -> Path:
        """Where states are until they are complete."""
        return self._path(global_index, "states.partial")

    def adopt(self, meta_raw: bytes, partial: Path) -> SetMeta:
        """Make a set of states that were received at ``partial``: all of them are read and compared with ``meta_raw``.

        Raises CorruptData or IncompatibleVersion, then ``discard`` it. Whose cluster it is the caller has to ask.
        """
        meta = decode(meta_raw, path=str(partial))
        if partial not in (self.partial_path(meta.global_index), self._fetched_path(meta.global_index)):
            raise CorruptData(f"{partial}: its set is {meta.global_index}", path=str(partial), offset=0)
        file = self._disk.open(partial)
        try:
            file.sync()  # before it is read, of the disk: after a failed sync memory shows what that does not have
            with unreadable_is_damage():
                verify_states(file, meta, anew=True)
        finally:
            file.close()
        self._publish(meta_raw, meta, partial)
        return meta

    def fetch(self, global_index: GlobalLogIndex) -> tuple[File, int]:
        """A file for the states of a set that comes piece by piece, and where to go on.

        It outlives the process; what an earlier attempt left is taken as far as its frames are whole. Close it, then
        ``adopt_fetched`` or ``discard``.
        """
        path = self._fetched_path(global_index)
        if not self._disk.exists(path):
            self._remove_fetches(global_index)
        file = self._disk.open(path, create=True)
        end = whole_bytes(file, global_index)
        if end < file.size():
            file.truncate(end)
        return file, end

    def drop_fetch(self, global_index: GlobalLogIndex) -> None:
        """What has come of it so far is of no use any more."""
        path = self._fetched_path(global_index)
        if self._disk.exists(path):
            self._disk.remove(path)
            self._disk.sync_directory(self._directory)

    def drop_fetches(self) -> None:
        """Nor of any other set."""
        self._remove_fetches(None)
        self._disk.sync_directory(self._directory)

    def adopt_fetched(self, meta_raw: bytes, global_index: GlobalLogIndex) -> SetMeta:
        """``adopt`` what was fetched. Raises CorruptData, then nothing is left of it; Unavailable: it is being made."""
        self._claim(global_index)
        try:
            known = next((meta for meta in self._sets if meta.global_index == global_index), None)
            if known is not None:  # taken here meanwhile: the same
                self._disk.remove(self._fetched_path(global_index))
                return known
            self._make_room(global_index)
            # By its own name until all of it is compared, which takes a while: after a kill that goes on with it.
            return self.adopt(meta_raw, self._fetched_path(global_index))
        except CorruptData:
            self.discard(global_index)
            raise
        finally:
            self._claimed.discard(global_index)

    def _make_room(self, global_index: GlobalLogIndex) -> None:
        """In the place of a damaged set. What comes of it piece by piece is to take that: it stays."""
        with self._changing:
            if any(each.global_index == global_index for each in self.damaged):
                self._remove(global_index, OWN_STATES)
                self.damaged = tuple(each for each in self.damaged if each.global_index != global_index)

    def _check_free(self, global_index: GlobalLogIndex) -> None:
        if any(meta.global_index == global_index for meta in self._sets):
            raise Unavailable(f"there is a snapshot set {global_index} already", retry_after=1.0)

    def _claim(self, global_index: GlobalLogIndex) -> None:
        with self._changing:
            if global_index in self._claimed:
                raise Unavailable(f"snapshot set {global_index} is being made here already", retry_after=1.0)
            self._claimed.add(global_index)

    def raw_meta(self, global_index: GlobalLogIndex) -> bytes:
        """As it is in its file. Raises IndexCompacted if there is no such set."""
        return encode(self.get(global_index))

    def discard(self, global_index: GlobalLogIndex) -> None:
        """Remove what an attempt left that did not become a set."""
        invariant(all(meta.global_index != global_index for meta in self._sets), "set {} is complete", global_index)
        self._remove(global_index)

    def open_states(self, global_index: GlobalLogIndex) -> File:
        """For reading; the set may be removed meanwhile.

        Raises IndexCompacted if there is no such set; CorruptData, IncompatibleVersion.
        """
        self.get(global_index)
        try:
            file = self._disk.open(self._path(global_index, "states"), readonly=True)
        except FileNotFoundError:  # removed since the look above
            raise IndexCompacted(f"snapshot set {global_index} was removed", first=global_index) from None
        try:
            check_header(file, global_index)
        except BaseException:
            file.close()
            raise
        return file

    def scrub(self, global_index: GlobalLogIndex) -> Pieces:
        """Read one set again. The damage of the last piece is the set's: it is of no use. Who removes it ends this."""
        path = self._path(global_index, "set")
        try:
            yield from twice(lambda: self._scrub(global_index, path))
        except IndexCompacted:
            return
        except (CorruptData, IncompatibleVersion, OSError) as error:
            if isinstance(error, OSError) and error.errno not in UNREADABLE:
                raise
            if any(meta.global_index == global_index for meta in self._sets):
                known = error if isinstance(error, CorruptData) else CorruptData(f"{path}: {error}", path=str(path))
                yield Piece(0, known)

    def _scrub(self, global_index: GlobalLogIndex, path: Path) -> Pieces:
        meta = self.get(global_index)
        raw = self._disk.read_file(path)
        yield Piece(len(raw))
        decode(raw, path=str(path))
        file = self._disk.open(self._path(global_index, "states"), readonly=True)
        try:
            yield from scrub_states(file, meta)
        finally:
            file.close()

    def free_bytes(self) -> int:
        """What the disk has left."""
        return self._disk.free_bytes(self._directory)

    def check_room(self, spare_bytes: int, nbytes: int = 0) -> None:
        """So much would be left with ``nbytes`` more in here; 0: nobody asks. Raises Unavailable."""
        free = self.free_bytes() if spare_bytes else 0
        if spare_bytes and free - nbytes < spare_bytes:
            wanted = f"{nbytes} bytes, and {spare_bytes} for everything else" if nbytes else f"{spare_bytes} more bytes"
            raise Unavailable(f"{self._directory}: no room: {free} bytes are free, wanted are {wanted}")

    def remove(self, global_index: GlobalLogIndex) -> None:
        """On return it is gone, durably."""
        with self._changing:
            invariant(any(meta.global_index == global_index for meta in self._sets), "there is no set {}", global_index)
            self._sets = tuple(meta for meta in self._sets if meta.global_index != global_index)
            self._remove(global_index)

    def drop(self, global_index: GlobalLogIndex) -> None:
        """Remove a set that may be gone already."""
        with self._changing:
            if any(meta.global_index == global_index for meta in self._sets):
                self.remove(global_index)

    def prune(self, keep: int, but: Collection[GlobalLogIndex] = ()) -> list[GlobalLogIndex]:
        """Remove all other than the last ``keep`` and ``but``; returns which.

        Damaged ones go, too, when there is a newer one.
        """
        invariant(keep >= 1, "no snapshot set would be left")
        with self._changing:
            old = [meta.global_index for meta in self._sets[:-keep] if meta.global_index not in but]
            for global_index in old:
                self.remove(global_index)
            newest = self._sets[-1].global_index if self._sets else GlobalLogIndex(0)
            for each in self.damaged:
                if each.global_index < newest and each.global_index not in self._claimed:
                    self._remove(each.global_index)
            self.damaged = tuple(each for each in self.damaged if each.global_index >= newest)
        return old

    def _remove_fetches(self, but: GlobalLogIndex | None) -> None:
        """Remove what was fetched of sets that nobody will go on with: of all but one."""
        for match in filter(None, map(NAME.fullmatch, self._disk.list(self._directory))):
            if match[2] == "states.fetch" and int(match[1]) != but:
                self._disk.remove(self._directory / match[0])

    def _look(self, indices: list[GlobalLogIndex]) -> tuple[SetMeta, ...]:
        sets, damaged = [], []
        for global_index in indices:
            try:
                sets.append(self._read(global_index))
            except CorruptData as error:
                damaged.append(Damaged(global_index, error))
            except OSError as error:
                if error.errno not in UNREADABLE:
                    raise
                path = str(self._path(global_index, "set"))
                damaged.append(Damaged(global_index, CorruptData(f"{path}: {error.strerror}", path=path)))
        self.damaged = tuple(damaged)
        return tuple(sets)

    def _read(self, global_index: GlobalLogIndex) -> SetMeta:
        path, states = self._path(global_index, "set"), self._path(global_index, "states")
        meta = decode(self._disk.read_file(path), path=str(path))
        if meta.global_index != global_index:
            raise CorruptData(f"{path}: it is set {meta.global_index}, misplaced", path=str(path), offset=0)
        if not self._disk.exists(states):
            raise CorruptData(f"{states}: missing", path=str(states), offset=0)
        file = self._disk.open(states, readonly=True)
        try:
            size = file.size()
        finally:
            file.close()
        if size != meta.states_bytes:
            raise CorruptData(f"{states}: {size} bytes, {meta.states_bytes} expected", path=str(states), offset=size)
        return meta

    def _remove_leftovers(self, found: Mapping[GlobalLogIndex, set[str]]) -> None:
        # What is seen may be in the page cache only, after a kill: from now on others rely on it.
        self._disk.sync_directory(self._directory)
        left = [
            self._path(global_index, kind)
            for global_index, kinds in sorted(found.items())
            for kind in sorted(kinds)
            if kind in ("set.new", "states.partial")
            or (kind == "states" and "set" not in kinds)
            or (kind == "states.fetch" and self._sets and global_index <= self._sets[-1].global_index)
        ]
        for path in left:
            self._disk.remove(path)
        if left:
            self._disk.sync_directory(self._directory)

    def _publish(self, raw: bytes, meta: SetMeta, states: Path) -> None:
        self._disk.rename(states, self._path(meta.global_index, "states"))
        self._disk.sync_directory(self._directory)
        self._disk.replace_file(self._path(meta.global_index, "set"), raw)
        with self._changing:
            self._sets = tuple(sorted((*self._sets, meta), key=lambda each: each.global_index))

    def _remove(
        self, global_index: GlobalLogIndex, states: Sequence[str] = ("states", "states.partial", "states.fetch")
    ) -> None:
        """All files of it that there are, or of ``states`` these: first what makes it a set."""
        for kinds in (("set",), ("set.new", *states)):
            paths = [path for kind in kinds if self._disk.exists(path := self._path(global_index, kind))]
            for path in paths:
                self._disk.remove(path)
            if paths:
                self._disk.sync_directory(self._directory)

    def _fetched_path(self, global_index: GlobalLogIndex) -> Path:
        return self._path(global_index, "states.fetch")

    def _path(self, global_index: GlobalLogIndex, kind: str) -> Path:
        return self._directory / f"{global_index:020d}.{kind}"
