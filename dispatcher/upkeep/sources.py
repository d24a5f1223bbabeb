"""Whom a node asks that is being given a snapshot: whoever has what comes next, again and again."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

import structlog

from logboom.errors import CorruptData, IndexCompacted, LogboomError, ProtocolError, Unavailable, from_wire
from logboom.types import NUMBER_MAX, GlobalLogIndex, NodeId
from logboom.wire import Frame, Kind
from ports.timers import wait
from raftlog.links.links import Links

log = structlog.get_logger(__name__)

ANSWER_S: Final = 2.0
ANSWER_S_MAX: Final = 120.0
"""Whoever has not answered by then is passed over: the shortest time, and the longest, where links are slow."""
MARGIN: Final = 4.0
"""So many times what the last answer took; and twice as long as before once nothing has come."""
ROUNDS_MAX: Final = 30
"""Times that all nodes are asked for the same piece before the set is given up."""
PAUSE_S: Final = 0.2
SILENT_PAUSE_S: Final = 1.0
"""Between two times that nodes are asked that did not answer, before what no other has counts as gone."""
SILENT_AGAIN_S: Final = 60.0
"""Whoever was waited for in vain is asked for what others have lost no more often: there may be thousands of that."""


class SetGone(LogboomError):
    """Nobody has this set any more; a newer one will be offered."""

    code = "set_gone"
    retryable = True


class Sources:
    """Whom one node asks for pieces, fetch after fetch, and their answers."""

    def __init__(self, peers: Callable[[], Iterable[NodeId]], links: Links) -> None:
        self._peers = peers
        self._links = links
        self._numbers = itertools.count(1)
        self._answers: dict[int, tuple[NodeId, asyncio.Future[Frame]]] = {}
        self._question: tuple[Kind, dict[str, Any]] | None = None
        self._earlier: dict[int, NodeId] = {}
        """Earlier requests of the same question, and who was asked: what comes late is as good."""
        self._patience = ANSWER_S
        self.first: NodeId | None = None
        """Whom to ask next."""
        self._gave: set[NodeId] = set()
        """Whoever has given something of the set under way."""
        self._doubted: tuple[int, frozenset[NodeId]] = (0, frozenset())
        """A set, and who gave all of a copy of it that was not what it should be: others are asked before them."""
        self._silent: set[NodeId] = set()
        """Whoever was waited for in vain, for the set under way."""
        self._silent_at = 0.0
        """When that was, last."""
        self.members: Collection[NodeId] | None = None
        """Of the cluster as of the set under way; None: that does not say."""

    def begin(self, global_index: int, peer: NodeId) -> None:
        """The next one to be fetched, which ``peer`` has offered."""
        if self._doubted[0] != global_index:
            self._doubted = (global_index, frozenset())
        self._gave.clear()
        self._silent.clear()
        self.members = None
        self.first = None if peer in self._doubted[1] else peer

    async def spoilt(self, global_index: GlobalLogIndex, states_bytes: int) -> None:
        """What has come is not what the set says: somebody's copy is damaged, and he does not know it yet.

        Whoever gave of it, and may never be asked again, is asked for its end, as who has all of it, and for its
        beginning: then he doubts it (serving.py). Who merely starts again does not ask for the end first.
        """
        self._doubted = (self._doubted[0], frozenset(self._gave))
        for peer in sorted(self._gave):
            for name, offset in (("states", max(0, states_bytes - 1)), ("meta", 0)):
                with suppress(LogboomError):
                    ask = {"global_index": global_index, "file": name, "offset": offset}
                    await self._ask_one(peer, Kind.SNAPSHOT_FETCH, ask)

    def on_frame(self, peer: NodeId, frame: Frame) -> None:
        """An answer, perhaps too late; not, if that node is asked the same once more."""
        asked, answer = self._answers.get(frame.request_id, (None, None))
        if self._earlier.get(frame.request_id) == peer:
            asked, answer = next((each for each in self._answers.values() if each[0] == peer), (None, None))
        if asked == peer and answer is not None and not answer.done():
            answer.set_result(frame)

    def peer_down(self, peer: NodeId) -> None:
        """Do not wait for its answers."""
        for asked, answer in self._answers.values():
            if asked == peer and not answer.done():
                answer.set_exception(Unavailable(f"the link to {peer} broke"))

    def tell(self, kind: Kind) -> None:
        """All of them."""
        for peer in list(self._peers()):
            self._links.send(peer, kind, {})

    async def ask_for_log(self, ask: dict[str, Any]) -> Frame:
        """Of whoever has what comes next; if nobody does, of who says that it is void, or goes on the soonest.

        Who does not answer may be the only one that has it: all are heard before it counts as gone, but those that
        stay silent, who are waited for once while a set is fetched, and for what is lost asked once in a while. Nor is
        somebody without a link waited for who was no member any more at the cut: he may be gone for good.
        """
        found, began = await self._ask(Kind.LOG_FETCH, ask), asyncio.get_running_loop().time()
        if batches_in(found) or "void" in found.header:
            return found
        unheard = [peer for peer in self._peers() if peer != self.first and self._is_there(peer)]
        if "lost" in found.header and began < self._silent_at + SILENT_AGAIN_S:
            unheard = [peer for peer in unheard if peer not in self._silent]
        for _ in range(ROUNDS_MAX):
            heard = set()
            for peer in unheard:
                try:
                    other = await self._ask_one(peer, Kind.LOG_FETCH, ask)
                    better = _says_more(other, found)
                except SetGone:
                    better = False
                except LogboomError:
                    continue
                heard.add(peer)
                if better:
                    found, self.first = other, peer
                if batches_in(found) or "void" in found.header:
                    return found
            self._silent -= heard
            unheard = [peer for peer in self._peers() if peer in unheard and peer not in heard]
            late = asyncio.get_running_loop().time() - began > ROUNDS_MAX * SILENT_PAUSE_S
            if late or self._silent.issuperset(unheard):
                break
            await wait(SILENT_PAUSE_S)
        if unheard:
            self._silent.update(unheard)
            self._silent_at = asyncio.get_running_loop().time()
            log.warning("log_not_asked_of", partition=ask["partition"], after=ask["after"], nodes=sorted(unheard))
        return found

    def _is_there(self, peer: NodeId) -> bool:
        return self.members is None or peer in self.members or self._links.connected(peer)

    async def piece(self, global_index: GlobalLogIndex, name: str, offset: int) -> Frame:
        """Of a file of the set, from ``offset`` on."""
        return await self._ask(Kind.SNAPSHOT_FETCH, {"global_index": global_index, "file": name, "offset": offset})

    async def _ask(self, kind: Kind, header: dict[str, Any]) -> Frame:
        """Of whoever answers. Raises SetGone when nobody has it, or why some do not give it.

        CorruptData that one of them has of the set is no more than that: what came of the others is as good as before.
        """
        said: LogboomError | None = None
        for _ in range(ROUNDS_MAX):
            gone = 0
            order = [*([self.first] if self.first is not None else []), *(p for p in self._peers() if p != self.first)]
            for peer in sorted(order, key=self._doubted[1].__contains__):
                try:
                    frame = await self._ask_one(peer, kind, header)
                except LogboomError as error:
                    gone += isinstance(error, SetGone)
                    if not isinstance(error, SetGone) and (said is None or not isinstance(error, Unavailable)):
                        said = error
                    continue
                self.first = peer
                self._gave.add(peer)
                return frame
            if gone == len(order):
                said = None
                break
            await wait(PAUSE_S)
        if isinstance(said, CorruptData) and kind is Kind.SNAPSHOT_FETCH:
            raise Unavailable(said.message)
        if said is not None:
            raise said
        raise SetGone(f"nobody gives the snapshot at {header['global_index']} any more")

    async def _ask_one(self, peer: NodeId, kind: Kind, header: dict[str, Any]) -> Frame:
        request_id = next(self._numbers)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Frame] = loop.create_future()
        began = loop.time()
        if self._question != (kind, header):
            self._question, self._earlier = (kind, header), {}
        self._answers[request_id] = peer, answer
        try:
            if not self._links.send(peer, kind, header, request_id=request_id):
                raise Unavailable(f"there is no link to {peer}")
            async with asyncio.timeout(self._patience):
                frame = await answer
            self._patience = min(max(ANSWER_S, MARGIN * (loop.time() - began)), ANSWER_S_MAX)
        except TimeoutError:
            # It may be on its way all this time. Whoever asked again and again as soon would never have all of it.
            self._patience = min(2 * self._patience, ANSWER_S_MAX)
            self._earlier[request_id] = peer
            raise Unavailable(f"{peer} does not answer") from None
        finally:
            del self._answers[request_id]
        error = frame.header.get("error")
        if isinstance(error, dict):
            known = from_wire(error)
            raise SetGone(known.message) if isinstance(known, IndexCompacted) else known
        if frame.header.get("partition") != header.get(
            "partition"
        ):  # of what somebody else had asked under this number
            raise ProtocolError(f"{peer} gives of partition {frame.header.get('partition')!r}, which nobody asked for")
        return frame


def batches_in(frame: Frame) -> list[tuple[memoryview, int]]:
    """Raw batches and their global indices. Raises ProtocolError."""
    rows = frame.header.get("rows")
    if not isinstance(rows, list):
        raise ProtocolError("LOG_CHUNK without rows")
    found, at = [], 0
    for row in rows:
        if not (isinstance(row, list) and len(row) == 2 and all(type(v) is int and 0 <= v < NUMBER_MAX for v in row)):
            raise ProtocolError("LOG_CHUNK: bad row")
        global_index, length = row
        if at + length > len(frame.body):
            raise ProtocolError("LOG_CHUNK: shorter than its rows say")
        found.append((frame.body[at : at + length], global_index))
        at += length
    return found


def _says_more(other: Frame, found: Frame) -> bool:
    """Than ``found``, which has no batches. What is void may still count as lost on a node that is behind."""
    if batches_in(other):
        return True
    if "void" in other.header or "void" in found.header:
        return "void" not in found.header
    return number(other.header, "first") < number(found.header, "first")


def number(header: Mapping[str, Any], name: str) -> int:
    """A field of a frame between nodes. Raises ProtocolError."""
    value = header.get(name)
    if type(value) is not int or not 0 <= value < NUMBER_MAX:
        raise ProtocolError(f"bad field {name}")
    return value
