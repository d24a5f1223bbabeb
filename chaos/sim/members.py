"""An operator who changes the members, as ``logboom members`` does, while everything else goes wrong too.

One change after the other, each asked for until it is done: an operator knows what he has asked for. Between
any two steps something may break. What the nemesis damages has a good copy among the voters that are left.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

from chaos.sim.host import Host, elsewhere
from chaos.sim.loop import SimLoop
from chaos.sim.nemesis import Nemesis
from chaos.sim.parameters import Parameters
from chaos.sim.seen import Seen
from chaos.sim.witness import Witness
from logboom import Client
from logboom.errors import InvalidRequest, LogboomError
from logboom.settings import Member

OPERATOR: Final = "operator"
SIZES: Final = (3, 4, 5, 3)
"""So many voters are wanted, one after the other."""
VOTERS_MAX: Final = 5
SEATS_MAX: Final = 6
HOSTS_MAX: Final = 12
PAUSE_S: Final = 1.5
ASK_S: Final = 4.0
AGAIN_S: Final = 0.3
VOTES_WITHIN_S: Final = 10.0
NEXT_WITHIN_S: Final = 2.0
NEXT_LOOK_S: Final = 0.002
TORN: Final = 0.2
STRUCK: Final = 0.6
CONFIDED: Final = 0.3
MOVED: Final = 0.35
"""Of the steps, where members move."""
WATCHES: Final = 0.5
"""Of the learners that are added, how many are left to watch for a while."""
STAY: Final = 3
"""Of fewer none does: clients that know of nobody else would never hear of it."""
APART_S: Final = 10.0
"""From one that has moved to the next: who only follows a stream hears of it when he asks for a sign of life."""
STRIKES: Final = ("kill", "power", "die_at_call", "isolate", "stop", "slow_disk", "reset")


class Operator:
    """Plays until it is cancelled. ``new_host`` makes the machine with a number."""

    def __init__(
        self,
        parameters: Parameters,
        hosts: list[Host],
        *,
        loop: SimLoop,
        rng: random.Random,
        seen: Seen,
        nemesis: Nemesis,
        witness: Witness,
        new_host: Callable[[int], Host],
        fail: Callable[[str, str], None],
    ) -> None:
        self._hosts = hosts
        self._loop = loop
        self._rng = rng
        self._seen = seen
        self._nemesis = nemesis
        self._witness = witness
        self._new_host = new_host
        self._fail = fail
        self._process = loop.process(OPERATOR)
        self._sizes = [*SIZES[rng.randrange(len(SIZES)) :], *SIZES]
        self._victims = bool(parameters.victims)
        """Some may be damaged: then three vote at least."""
        self._moves = parameters.moves
        self._moved_at = -APART_S
        self._to: str | None = None
        """The node that is asked next, by its address; None: any."""
        self.removing: str | None = None
        """Whose removal is asked for: where the run's end comes first, nobody knows whether it will be proposed."""
        self.done: Counter[str] = Counter()

    async def play(self) -> None:
        """One step after the other."""
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / PAUSE_S))
            said = await self._ask("list", lambda client: client.member_list(), once=True)
            if said is not None:
                await self._step(said)

    def leave(self) -> None:
        """Nothing is asked again: whoever is about to heal counts on the members that there are."""
        self._loop.kill(self._process)

    async def _step(self, said: dict[str, Any]) -> None:
        roles = {row["id"]: row["role"] for row in said["members"]}
        heard = self._loop.time() - self._moved_at >= APART_S
        if self._moves and heard and len(roles) >= STAY and self._rng.random() < MOVED:
            await self._move(self._host(self._rng.choice(sorted(roles))))
            return
        voters = [node for node, role in roles.items() if role == "voter"]
        learners = [node for node, role in roles.items() if role == "learner"]
        while self._sizes and len(voters) == self._sizes[0]:
            self._sizes.pop(0)
        wanted = self._sizes[0] if self._sizes else self._rng.randint(3, VOTERS_MAX)
        dice = self._rng.random()
        if dice < 0.2:
            to = self._rng.choice([None, *voters])
            await self._ask("transfer", lambda client: client.transfer(to), once=True)
        elif learners and dice < 0.5:
            await self._learner(self._rng.choice(learners))
        elif self._nemesis.victims and dice < 0.35 and len(voters) >= 3:
            await self._lose_disk(self._nemesis.victims[0])
        elif len(voters) < wanted and len(roles) < SEATS_MAX and len(self._hosts) < HOSTS_MAX:
            await self._add()
        elif len(voters) > (3 if self._victims else 1):
            leads = self._rng.random() < 0.4 and said["leader"] in roles
            await self._remove(said["leader"] if leads else self._rng.choice(voters), voters)

    # -- steps

    async def _add(self, *, victim: bool = False) -> None:
        host = self._new_host(len(self._hosts) + 1)
        late, learner = self._rng.random() < 0.3, self._rng.random() < 0.4
        if not late:
            host.start()
        await self._something(host)
        await self._ask(
            "add",
            lambda client: client.add_member(
                host.name,
                peer_address=host.member.peer_address,
                client_address=host.member.client_address,
                learner=learner,
            ),
        )
        self._seen.addresses[host.member.client_address] = host.name
        await self._something(host)
        host.start()
        if learner:
            if not victim and self._rng.random() < WATCHES:
                return
            await self._promote(host)
        end = self._loop.now + VOTES_WITHIN_S
        while self._loop.now < end:
            said = await self._ask("list", lambda client: client.member_list(), once=True)
            if said is not None and said["committed"] and [host.name, "voter"] in _roles(said):
                self.done["voters"] += 1
                if victim:
                    self._nemesis.victims[:] = [host.name]
                return
            await asyncio.sleep(AGAIN_S)

    async def _promote(self, host: Host) -> None:
        await self._ask("promote", lambda client: client.promote_member(host.name))
        await self._something(host)

    async def _learner(self, name: str) -> None:
        """It has watched, or somebody lost patience: it becomes a voter, or goes."""
        if self._rng.random() < 0.7:
            await self._promote(self._host(name))
        else:
            await self._remove(name, [])

    async def _remove(self, name: str, voters: list[str]) -> None:
        """It is stopped; or runs on for a while; or was away, and comes back with all that it had."""
        host, fate = self._host(name), self._rng.choice(["stopped", "runs on", "away"])
        if fate == "away" and not all(self._host(voter).may_run for voter in voters):
            fate = "stopped"  # one voter is gone for good: without this one, too, nothing might be decided any more
        may_run = host.may_run
        try:
            if fate == "away":
                host.may_run = False
                host.kill(power=False)
                await self._something(None)
            if self._rng.random() < CONFIDED:
                leader = self._leader()
                self._strike("confide", host, after=0.0)
                self._to = None if leader is None else leader.member.client_address
            await self._ask_to_remove(name)
        finally:
            host.may_run = may_run  # if the run's end comes first, it is a voter still
        if name in self._nemesis.victims:
            left = [voter for voter in voters if voter != name]
            self._nemesis.victims[:] = [self._rng.choice(left)] if len(left) >= 3 else []
        await self._something(host)
        if fate != "stopped":
            host.start()
            await asyncio.sleep(self._rng.uniform(0.5, 6.0))
        if fate != "runs on" or self._rng.random() < 0.5:
            self._seen.addresses.pop(host.member.client_address, None)
            host.retire()

    async def _ask_to_remove(self, name: str) -> None:
        self.removing = name
        await self._ask("remove", lambda client: client.remove_member(name))
        self.removing = None

    async def _move(self, host: Host) -> None:
        """To other addresses: the cluster is told before its node starts there, or afterwards."""
        before = self._rng.random() < 0.5
        if before:
            await self._update(host, elsewhere(host.member))
            await self._something(host)
        if not host.may_run:
            return  # somebody keeps it down
        self._seen.addresses.pop(host.member.client_address, None)
        host.move()
        self._seen.addresses[host.member.client_address] = host.name
        if not before:
            host.start()
            await self._something(host)
            await self._update(host, host.member)
        host.start()
        self._moved_at = self._loop.time()
        self.done["moved"] += 1

    async def _update(self, host: Host, there: Member) -> None:
        await self._ask(
            "update",
            lambda client: client.update_member(
                host.name, peer_address=there.peer_address, client_address=there.client_address
            ),
        )

    async def _lose_disk(self, name: str) -> None:
        """The machine comes back with an empty one, as another node; the old one is removed before."""
        host = self._host(name)
        host.may_run = False
        self._nemesis.victims.clear()
        self._nemesis.damaged.add(name)
        self._witness.lost_disk(host)
        host.lose_disk()
        self._nemesis.rotten.discard(name)
        self._seen.addresses.pop(host.member.client_address, None)
        self.done["lost disks"] += 1
        await self._something(None)
        await self._ask_to_remove(name)
        host.retire()
        await self._something(None)
        await self._add(victim=True)

    def _host(self, name: str) -> Host:
        return next(host for host in self._hosts if host.name == name)

    async def _something(self, host: Host | None) -> None:
        """Between two steps: nothing, or a fault where it matters."""
        rng = self._rng
        await asyncio.sleep(rng.random() ** 2)
        dice, leader = rng.random(), self._leader()
        if dice < TORN and leader is not None:
            # Whom nobody hears is asked, and what it has begun may be undone by whoever leads next; or that one is
            # asked, before it can know what is committed.
            self._strike("isolate", leader, after=0.0)
            asked = leader if rng.random() < 0.5 else await self._next_leader(leader)
            self._to = asked.member.client_address
        elif dice < STRUCK:
            target = host if host is not None and rng.random() < 0.5 else None
            self._strike(rng.choice(STRIKES), target, after=rng.choice([0.0, 0.01, 0.05]))  # into the next step, or not
            await asyncio.sleep(rng.choice([0.0, 0.1]))

    def _strike(self, kind: str, target: Host | None, *, after: float) -> None:
        dice = random.Random(self._rng.getrandbits(32))
        self._nemesis.strike(kind, target, self._rng.choice([0.1, 0.5, 1.5]), dice, after=after)

    def _leader(self, other_than: Host | None = None) -> Host | None:
        hosts = (h for h in self._hosts if h is not other_than)
        return next((h for h in hosts if h.node is not None and h.node.pipeline.raft.engine.is_leader), None)

    async def _next_leader(self, leader: Host) -> Host:
        end = self._loop.now + NEXT_WITHIN_S
        while self._loop.now < end:
            found = self._leader(other_than=leader)
            if found is not None:
                return found
            await asyncio.sleep(NEXT_LOOK_S)
        return leader

    # -- asking

    async def _ask(self, what: str, call: Callable[[Client], Awaitable[Any]], *, once: bool = False) -> Any:
        """As a new client, like a command line's. Again until it is answered, or once: then None is no answer."""
        while True:
            answer: asyncio.Future[Any] = self._loop.create_future()
            self._loop.spawn(self._process, self._asked(call, answer))
            try:
                found = await answer
            except InvalidRequest as error:
                if not once:
                    self._fail("MembersMove", f"{what} is refused: {error}")
                return None
            except LogboomError:
                if once:
                    return None
                await asyncio.sleep(AGAIN_S)
            else:
                if what != "list":
                    self.done[what] += 1
                return found

    async def _asked(self, call: Callable[[Client], Awaitable[Any]], answer: asyncio.Future[Any]) -> None:
        addresses, self._to = list(self._seen.addresses) if self._to is None else [self._to], None
        rng = random.Random(self._rng.getrandbits(64))
        client = Client(addresses, rng=rng, timeout=ASK_S)  # not `async with`: who is killed has nothing to close
        try:
            found = await call(client)
        except LogboomError as error:
            self._loop.run_as(None, _settle, answer, None, error)
        else:
            self._loop.run_as(None, _settle, answer, found, None)
        await client.close()


def _settle(answer: asyncio.Future[Any], found: Any, error: LogboomError | None) -> None:
    if answer.done():
        return  # nobody waits any more
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(found)


def _roles(said: dict[str, Any]) -> list[list[str]]:
    return [[row["id"], row["role"]] for row in said["members"]]
