"""A client that knows how far logs go and where they begin."""

from logboom.client.reads import LogBatch
from logboom.errors import DeadlineExceeded, IndexCompacted, PartitionDestroyed, Unavailable
from logboom.records import RecordBlock
from logboom.types import Watermark

E = {"endpoints": "a:1"}


class Client:
    """Of partition 0 offsets 50 to 99, of 1 offsets 1 to 9, of 2 nothing; global offsets are ten times those.

    The record at offset k was taken at k seconds. Partition 3 is that of the cursors, which nobody sees.
    """

    timeout = 2.0

    def __init__(self):
        self.held = {0: (50, 99), 1: (1, 9), 2: (1, 0), 3: (1, 4)}
        self.voids = {}
        self.opening, self.stand, self.destroyed = set(), set(), set()
        """Partitions that are being opened where they are asked for; that cannot be shown; that end just then."""
        self.behind = set()
        """Partitions that cannot be shown yet: they are not where they were before the node was started."""
        self.states = {}
        """States of those that neither run nor are paused."""
        self.slow = {}
        """For which partitions, and how long, whoever is asked takes before he answers or refuses."""
        self.limits = []
        """How long what was asked for may take, each time."""

    async def close(self):
        pass

    async def partitions(self):
        return [p for p in self.held if p != 3]

    async def members(self):
        return {"n1": "a:1"}

    async def refresh_partitions(self, *, at_least, node):
        pass

    async def member_list(self):
        return {"node": "n1", "leader": "n1"}

    async def status(self, *, node=None):
        """Of any it is that of one that the others do not let in: what is paused there is so there alone."""
        if node is None:
            return {"node": "n3", "leader": None, "partitions": [[0, 1, 1, 1, 0, 1, "paused"]]}
        assert node == "n1"
        states = dict.fromkeys(self.held.keys() - self.opening - self.behind, "running")
        states |= dict.fromkeys(self.stand, "paused") | self.states
        return {"node": "n1", "leader": "n1", "partitions": [[p, 1, 1, 1, 0, 1, s] for p, s in states.items()]}

    async def watermarks(self, partitions, *, linearizable=False, node=None, timeout=None):
        assert linearizable == (node is None)
        self.limits.append(timeout)
        asked = set(partitions)
        slow = max((self.slow[p] for p in self.slow.keys() & asked), default=0.0)
        if timeout is not None and slow > timeout:
            before = (
                Unavailable("still recovering") if (self.stand | self.behind) & asked and slow < 2 * timeout else None
            )
            raise DeadlineExceeded("the deadline passed before an answer came") from before
        if (self.stand | self.behind) & asked or (timeout is not None and self.opening & asked):
            raise Unavailable("this node is still recovering")
        for p in self.destroyed & asked:
            self.destroyed.remove(p)
            del self.held[p]
            raise PartitionDestroyed("since", partition_id=p)
        return [Watermark(p, last, last, last, 0, 1, "running") for p, (_, last) in self.held.items() if p in asked]

    async def tail(self, partition, *, start=0, start_global=0, start_time=0, on_void=None, **_):
        first, last = self.held[partition]
        gap = self.voids.get(partition)
        if start_global:
            start = min(-(-start_global // 10), last + 1)
        if gap is not None and 0 < start <= gap.last_index:
            start = gap.next
            if on_void is not None:
                on_void(gap)
        if 0 < start < first:
            raise IndexCompacted("gone from all nodes", first=first)
        at = max(start, first, -(-start_time // 1000))
        if at <= last:
            block = RecordBlock.from_columns(keys=None, payloads=[b"v"])
            yield LogBatch(partition, at, 10 * at, 1, 1000 * at, b"p" * 16, 0, 0, block)
