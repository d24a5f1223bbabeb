"""Fetching batches by digest from any peer that holds them.

Needed only after damage or, in write-behind mode, a power loss: entries of the journal that
were acknowledged and whose batch is gone, or turned out to be damaged when it was read. Until all
are back the node does not lead and applies nothing (docs/decisions/0009), unless all other nodes
have said that they do not have it either: then there is a *hole* in its place, and everything else
goes on (docs/decisions/0018). In normal operation the gate makes this unnecessary.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Container, Mapping
from typing import Final

import structlog

from logboom.types import NodeId, PartitionId
from logboom.wire import Frame, Kind
from ports.clock import Clock
from ports.offload import Offload
from raftlog.entries.entry import ROUTE, Route
from raftlog.journal.journal import Journal
from raftlog.links.lacks import LACKS_MAX, NOBODY_HAS, Answers, Lack, digest_in, number, unpack
from raftlog.links.links import Links
from raftlog.links.payloads import DamagedPayload, Payloads
from raftlog.repair.giving import Giving
from raftlog.repair.question import Question
from raftlog.repair.room import Room
from raftlog.repair.seals import Seals
from raftlog.repair.standing import Standing, Told
from raftlog.repair.wanted import Settled, Wanted

log = structlog.get_logger(__name__)

ROUTES_PER_FETCH: Final = LACKS_MAX
ASK_AGAIN_S: Final = 0.5
NOTHING_MISSING: Final = 1 << 62


class Repair:
    """Both sides: asks for what is missing here, answers what peers ask."""

    def __init__(
        self,
        *,
        peers: list[NodeId],
        links: Links,
        payloads: Payloads,
        journal: Journal,
        offload: Offload,
        clock: Clock,
        damaged: Callable[[DamagedPayload], None],
        standing: Callable[[], Standing] = Standing,
        room: Room | None = None,
    ) -> None:
        """``damaged`` is called for what a peer asked for and cannot be read here. ``room``: else all may come."""
        self._links = links
        self._payloads = payloads
        self._journal = journal
        self._clock = clock
        self._standing = standing
        self._missing: list[Wanted] = []
        self._asked: Question | None = None
        self._busy = 0
        """So often in a row, without a pause, somebody could give nothing just then."""
        self._room = Room() if room is None else room
        self._turn, self._others = 0, False
        """Where those begin that are asked for in the next question which is for all in turn; the last one was."""
        self._numbers = itertools.count(1)
        self._answers = Answers()
        self._term = 0
        """Of the answers."""
        self._told = Told()
        self.seals = Seals(lambda digest, on: payloads.seal(digest, on=on))
        self._giving = Giving(
            links=links,
            payloads=payloads,
            offload=offload,
            clock=clock,
            seals=self.seals,
            damaged=damaged,
            standing=standing,
            own=self.own,
        )
        self.holes: dict[bytes, Wanted] = {}
        """Of what is missing: what the log goes on without."""
        self.hopeless: dict[bytes, Wanted] = {}
        """Those that no other node gives, by digest."""
        self._settled = Settled(payloads)
        self.news = False
        """Something that was missing is here, or was conceded, since somebody has looked."""
        self.set_peers(peers)

    def set_peers(self, peers: Collection[NodeId], *, optional: Collection[NodeId] = (), alone: bool = False) -> None:
        """Whom to ask from now on. ``alone``: this node is the only member.

        ``optional`` of them are no members of what counts: they are waited for while there is a link. Whoever is
        removed may be gone for good, and until a leader commits that it stays in ``peers``.
        """
        self._alone, self._optional = alone, frozenset(optional)
        self._everybody = tuple(peers)
        self._in_turn = itertools.cycle(peers), itertools.cycle(peers)
        """By ``_others``: questions of both kinds alternate, and in one cycle each of two peers got one kind alone."""
        for wanted in self._settled.lapsed({*peers} - {*optional}) if peers or alone else ():
            self._ask_anew(wanted)

    def _ask_anew(self, wanted: Wanted) -> None:
        """Nobody had it: the log goes on without meanwhile."""
        self._missing = [*(each for each in self._missing if each.route.digest != wanted.route.digest), wanted]
        self._answers.forget(wanted.route.digest)
        self._concede(wanted)

    def verdict(self, digest: bytes) -> Lack | None:
        """What all other nodes have said of a batch that is missing here; None: not all of them have."""
        if digest in self._settled:
            return Lack.COMPACTED
        needed = tuple(p for p in self._everybody if p not in self._optional or self._links.connected(p))
        return Lack.ABSENT if self._alone and not needed else self._answers.verdict(digest, needed)

    def lost(self) -> list[tuple[Route, Lack | None]]:
        """Of the hopeless those that are still missing, and what the others say."""
        self._settled.begin_behind()
        for digest, wanted in list(self.hopeless.items()):
            if digest in self._settled and self._payloads.holds(wanted.route):
                self._over(digest)
            elif self._is_removed(wanted):
                self._forget(digest)
                del self.hopeless[digest]
        return [(wanted.route, self.verdict(digest)) for digest, wanted in self.hopeless.items()]

    @property
    def active(self) -> bool:
        """Something is missing."""
        return bool(self._missing)

    @property
    def blocked(self) -> bool:
        """Something is missing, and is no hole."""
        return len(self.holes) < len(self._missing)

    @property
    def doubts(self) -> bool:
        """There is a hole in an entry that may never be committed."""
        return any(self._open(each) is not None for each in self.holes.values())

    @property
    def missing_count(self) -> int:
        """Batches that are wanted."""
        return len(self._missing)

    @property
    def first_index(self) -> int:
        """First journal entry that is not to be acknowledged; of committed ones nobody needs to be told.

        Its payload is missing, and the leader has not said that it is lost.
        """
        told, term, base = self._told, self._standing().term, self._journal.base_index
        rows = ((each.open_above(base), each.route.digest) for each in self._missing)
        return min((at for at, digest in rows if at and not told.counts(digest, term)), default=NOTHING_MISSING)

    def may_pass(self, route: Route, term: int) -> bool:
        """The gate may let an entry in whose payload is not here: the leader of ``term`` has called it lost."""
        return self._told.counts(route.digest, term)

    def let_in(self, wanted: Wanted) -> None:
        """It came in on his word, which counts for nothing once another leads, who may have it: from now on a hole."""
        digest = wanted.route.digest
        if digest not in self.holes and all(each.route.digest != digest for each in self._missing):
            self.holes[digest] = wanted
            at = next((at for at, each in enumerate(self._missing) if self._open(each) is None), len(self._missing))
            self._missing.insert(at, wanted)  # in front of all that are committed, which hold up no acknowledgement
            self._turn += at < self._turn

    def missing(self, routes: list[Wanted]) -> None:
        """These must be fetched, in this order (a batch is appended only after its predecessor)."""
        self._missing, self.holes, self._turn = list(routes), {}, 0
        if routes:
            log.warning("payload_missing", batches=len(routes), first=routes[0].route.last_index)

    def damaged(self, wanted: Wanted) -> None:
        """One that was held cannot be read."""
        log.warning("payload_damaged", partition=wanted.route.partition_id, last_index=wanted.route.last_index)
        self._missing.append(wanted)

    def committed(self, route: Route) -> None:
        """An entry without its payload was handed up: the hole in the log stays until it is filled or void."""
        wanted = Wanted(route, None)
        if route.digest in self.holes:
            self._missing = [wanted if each.route.digest == route.digest else each for each in self._missing]
        else:
            self._missing.append(wanted)
        self.holes[route.digest] = wanted
        self.hopeless.setdefault(route.digest, wanted)

    def voided(self, digest: bytes) -> None:
        """Nobody needs it any more."""
        self.seals.put(digest, on=False)
        self._missing = [each for each in self._missing if each.route.digest != digest]
        self._over(digest)

    def work(self) -> bool:
        """Drop what has arrived; ask the next peer when the last one has not answered in time.

        True: all is here, but for holes, or what is not here is given by nobody, and need not be: a snapshot stands
        for it.
        """
        self.follow_term()
        while self._drop(0) or (self._turn > ROUTES_PER_FETCH and self._drop(self._turn - ROUTES_PER_FETCH)):
            self.news = True
        if not self._missing:
            log.info("payload_repaired")
            return True
        now = self._clock.monotonic()
        # Without room nobody is asked: the next tick looks again.
        if self._room.left and (self._asked is None or now - self._asked.at >= ASK_AGAIN_S):
            self._ask(now)
        return not self.blocked

    def _drop(self, begin: int) -> bool:
        """What is over of as many as are asked for at once, from there on."""
        window = self._missing[begin : begin + ROUTES_PER_FETCH]
        done = [each for each in window if self._is_over(each)]
        if done:
            self._missing[begin : begin + ROUTES_PER_FETCH] = [each for each in window if each not in done]
            self._turn = max(begin, self._turn - len(done))
        for each in done:
            self.holes.pop(each.route.digest, None)
            if self._asked is not None and self._asked.awaited == each.route.digest:
                self._asked, self._busy = None, 0
        return bool(done)

    def _ask(self, now: float) -> None:
        self._busy = self._busy if self._asked is None else 0
        rows = self._next_rows()
        # First whoever would not only say again what he has said. Where the last question brought nothing, all in turn:
        # whose disk hangs, and who gives what cannot be taken, never says anything, and others may have it by now.
        for anybody in (False, True) if self._asked is None else (True,):
            for _ in self._everybody if rows else ():
                peer = next(self._in_turn[self._others])
                if not anybody and all(peer in self._answers.said(route.digest) for route in rows):
                    continue
                asked = next(self._numbers)
                if self._send_fetch(peer, rows, asked=asked, sets=self._sets_help(rows)):
                    digests = [route.digest for route in rows]
                    self._asked = Question(peer, now, asked, digests, in_turn=self._others, awaited=digests[-1])
                    return

    def _next_rows(self) -> list[Route]:
        """What somebody who is there may have, in order, and can be taken; else all that is missing, in turn."""
        # A leader's question would take the seal off again; a follower has to hear from it what is lost.
        sealed: Container[bytes] = self.seals if self._standing().leads else ()
        first, stuck = list[Wanted](), set[PartitionId]()
        for wanted in self._missing:
            route = wanted.route
            if route.digest in self.holes or route.partition_id in stuck:
                continue
            if route.digest in sealed or self._asked_enough(route.digest):
                stuck.add(route.partition_id)  # what follows could not be taken
            else:
                first.append(wanted)
            if len(first) == ROUTES_PER_FETCH:
                break
        # Where the last question for these brought nothing, the next one is for the others: nothing waits for good.
        self._others = not first or (self._asked is not None and not self._others)
        if not self._others:
            if first != self._missing[: len(first)]:  # in front, where ``work`` looks: they follow none that they pass
                chosen = {each.route.digest for each in first}
                self._missing = first + [each for each in self._missing if each.route.digest not in chosen]
            self._turn = max(self._turn, len(first))
            return [each.route for each in first]
        begin = self._turn if self._turn < len(self._missing) else 0
        window = self._missing[begin : begin + ROUTES_PER_FETCH]
        self._turn = begin + len(window)
        return [each.route for each in window if each.route.digest not in sealed]

    def _asked_enough(self, digest: bytes) -> bool:
        """Nobody has it; or nobody who is there, and who is not may stay away for long."""
        said = self._answers.said(digest)
        there = {said.get(peer, Lack.UNKNOWN) for peer in self._everybody if self._links.connected(peer)}
        return self.verdict(digest) is not None or (bool(there) and Lack.UNKNOWN not in there)

    def _sets_help(self, rows: list[Route]) -> int:
        """A bit for each: it stays lost, and the state lacks it, so that a set is as good. Else only the batch is."""
        holes = ((at, self.holes.get(route.digest)) for at, route in enumerate(rows))
        settled = ((at, hole.route) for at, hole in holes if hole is not None and self._open(hole) is None)
        return sum(1 << at for at, route in settled if self._payloads.lack(route) is not Lack.APPLIED)

    def _send_fetch(self, peer: NodeId, rows: list[Route], *, asked: int, sets: int, void: bool = False) -> bool:
        header = {"term": self._standing().term, "asked": asked, **({"void": True} if void else {})}
        if sets:
            header["sets"] = sets
        if self.first_index == NOTHING_MISSING:
            header["acknowledges"] = True
        return self._links.send(peer, Kind.FETCH, header, [b"".join(ROUTE.pack(*route) for route in rows)])

    def _is_over(self, wanted: Wanted) -> bool:
        digest, stays = wanted.route.digest, wanted.route.digest in self.holes
        if self._payloads.holds(wanted.route) or self._given_up(wanted) or self._is_removed(wanted):
            self._over(digest)
            return True
        verdict = self.verdict(digest)
        if verdict is None:
            return False
        if digest not in self.hopeless:
            route = wanted.route
            log.error("payload_lost", partition=route.partition_id, last_index=route.last_index, others=verdict)
            self.hopeless[digest] = wanted
        if verdict in NOBODY_HAS or self._payloads.lack(wanted.route) is Lack.APPLIED:
            self._concede(wanted)  # or this node needs it no more
        # What the log goes on without is asked for until a state is made of such a snapshot: that may be lost, too.
        if verdict is not Lack.COMPACTED or self._open(wanted) is not None or stays:
            return False
        self._settled.add(wanted, self._answers.said(digest))
        return True

    def _over(self, digest: bytes) -> None:
        self._forget(digest)
        self._told.forget(digest)
        for table in (self.hopeless, self.holes):
            table.pop(digest, None)
        self.news = True

    def _forget(self, digest: bytes) -> None:
        self._settled.forget(digest)
        self._answers.forget(digest)

    def _concede(self, wanted: Wanted) -> None:
        """Once conceded it stays so, whatever becomes of links and terms: it was true, and nobody makes it anew."""
        if wanted.route.digest not in self.holes and self._payloads.concede(wanted.route):
            log.error("hole", partition=wanted.route.partition_id, last_index=wanted.route.last_index)
            self.holes[wanted.route.digest] = wanted
            self.news = True

    def _is_removed(self, wanted: Wanted) -> bool:
        """Compaction has taken it away here, too; or it is a hole in a partition that is destroyed, and stays one."""
        ended = wanted.route.digest in self.holes and self._payloads.ended(wanted.route)
        return self._open(wanted) is None and (ended or self._payloads.lack(wanted.route) is Lack.COMPACTED)

    def _given_up(self, wanted: Wanted) -> bool:
        return wanted.is_cut_off(self._journal)

    def _open(self, wanted: Wanted) -> int | None:
        return wanted.open_above(self._journal.base_index)

    def peer_down(self, peer: NodeId) -> None:
        """Do not wait for its answer; what it has by now, it has to say anew."""
        self._answers.forget_peer(peer)
        if self._asked is not None and self._asked.peer == peer:
            self._asked = None

    def follow_term(self) -> None:
        term = self._standing().term
        if term != self._term:
            self._term, self._turn = term, 0 if self.doubts else self._turn  # those first, which this leader may have
            self._answers.clear()
            self._told.clear()
            self.seals.clear()

    # -- declaring void (leader only)

    def ask_all(self, route: Route, *, void: bool) -> int:
        """Ask everybody anew of a batch; the number of the question. ``void``: whoever lacks it seals it.

        Where somebody else has it sealed it stays so. Whoever asks for a void does so within ``seals.asking``.
        """
        self.follow_term()
        asked, void = next(self._numbers), void or route.digest in self.seals
        for peer in self._everybody:
            self._send_fetch(peer, [route], asked=asked, sets=1, void=void)
        return asked

    def said(self, digest: bytes, asked: int) -> Mapping[NodeId, Lack | None]:
        """What everybody has answered to that question, in the term of now; None: nothing yet."""
        self.follow_term()
        found = self._answers.said(digest, term=self._term, asked=asked)
        return {peer: found.get(peer) for peer in self._everybody}

    # -- frames

    def on_frame(self, peer: NodeId, frame: Frame) -> None:
        """FETCH: answer with what we hold, and say why not for the rest. FETCHED: one batch, or why not."""
        self.follow_term()
        if frame.kind is Kind.FETCH:
            self._giving.answer(peer, frame)
        elif "lacks" in frame.header:
            term, asked = number(frame.header, "term"), number(frame.header, "asked")
            self._hear(peer, unpack(frame.header), term=term, asked=asked)
            if frame.header.get("busy") is True and self._asked is not None and self._asked.is_it(peer, asked):
                self._busy += 1
                if self._busy < len(self._everybody):
                    self._asked = None  # somebody else is asked at once, but not all in a circle
        else:
            standing, free = self._standing(), digest_in(frame.header, "free")
            if free is not None and (standing.term, standing.leader) == (number(frame.header, "term"), peer):
                self.seals.put(free, on=False)
            taken = self._payloads.receive(frame.body) is not None
            if taken:
                self._room.take(len(frame.body))
            more = digest_in(frame.header, "more")
            if more is not None:
                self._go_on_behind(peer, more, asked=number(frame.header, "asked"), taken=taken)

    def _hear(self, peer: NodeId, lacking: list[tuple[Route, Lack]], *, term: int, asked: int) -> None:
        wanted = {each.route.digest: each for each in self._missing}
        standing = self._standing()
        news = False
        for route, lack in lacking:
            if lack is Lack.LOST and (standing.term, standing.leader) == (term, peer):
                self._believe(route, term, wanted.get(route.digest))
            if route.digest in wanted:
                news = self._answers.say(peer, route, lack, term=term, asked=asked) or news
        if news and self._asked is not None and self._asked.peer == peer:
            self._asked = None  # somebody else may have it: ask at once

    def _go_on_behind(self, peer: NodeId, digest: bytes, *, asked: int, taken: bool) -> None:
        """It has given what there was room for, this one last: the next question comes as soon as that is over."""
        question = self._asked
        if question is None or not question.is_it(peer, asked) or digest not in question.digests:
            return
        question.awaited = digest
        # What cannot be taken is not to stand in front of the same others each time.
        if question.in_turn:
            self._turn = max(0, self._turn - (len(question.digests) - 1 - question.digests.index(digest)))
            return
        given = None if taken else next((each.route for each in self._missing if each.route.digest == digest), None)
        if given is not None and not self._payloads.holds(given):  # nor what follows it, or before what it follows
            own = [each for each in self._missing if each.route.partition_id == given.partition_id]
            others = [each for each in self._missing if each.route.partition_id != given.partition_id]
            self._missing = others + sorted(own, key=lambda each: each.route.last_index)

    def _believe(self, route: Route, term: int, wanted: Wanted | None) -> None:
        """The leader of this term calls it lost."""
        if wanted is not None:
            self._concede(wanted)
        elif not self._payloads.concede(route):
            return
        self._told.add(route.digest, term)

    def own(self, route: Route, *, sets: bool = False) -> Lack:
        """Why this node does not have a batch. ``sets``: one of this node's that has what it did counts."""
        found = self._payloads.lack(route)
        if sets and found in (Lack.ABSENT, Lack.DAMAGED) and self._payloads.is_covered(route):
            return Lack.COMPACTED
        if found is Lack.ABSENT and (
            route.digest in self.hopeless or any(wanted.route.digest == route.digest for wanted in self._missing)
        ):
            return Lack.DAMAGED
        return found
