"""What stands in for a node behind sessions and links: everything is at hand, and nothing has to be waited for."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, TypeVar, cast

from chaos.fuzz.disk import MemoryDisk
from dispatcher.admission.places import Places
from dispatcher.barriers.barriers import Barriers
from dispatcher.barriers.watermarks import Watermarks
from dispatcher.pipeline.freshness import Freshness
from dispatcher.reading import reads
from dispatcher.reading.at_hand import AtHand
from dispatcher.reading.lately import Lately
from dispatcher.reading.read_budget import ReadBudget
from dispatcher.reading.scans import Scans
from dispatcher.reading.surroundings import Horizon
from dispatcher.requests.requests import SubmitReply, SubmitRequest
from dispatcher.upkeep.serving import SnapshotServing
from logboom.errors import LogboomError, NoSuchPartition, QuotaExceeded, Unavailable
from logboom.settings import ClusterSettings, Member, Settings
from logboom.state_machine import Position
from logboom.types import Ack, GlobalLogIndex, NodeId, PartitionId, PartitionLogIndex, RaftIndex, Term
from logboom.wire import Buffer
from partitions.log.compaction import Leases
from raftlog.entries.chosen import Chosen
from raftlog.entries.configuration import NOBODY
from raftlog.entries.lifecycle import Lifecycle
from snapshots.meta import SetMeta
from snapshots.store import SnapshotStore

T = TypeVar("T")

ME: Final = NodeId("n1")
PARTITIONS: Final = [PartitionId(0), PartitionId(1)]
MEMBERS: Final = tuple(Member(id=f"n{n}", peer_address=f"h:{n}", client_address=f"h:{n + 5}") for n in (1, 2, 3))
SETTINGS: Final = Settings(cluster=ClusterSettings(id="fuzz", members=MEMBERS, partitions=2))
DIGEST: Final = bytes(range(16))
_CUT: Final = (GlobalLogIndex(5), RaftIndex(9), Term(2))


class Still:
    """A clock that stands, and an offload that does it at once."""

    def monotonic(self) -> float:
        return 1000.0

    def wall_ms(self) -> int:
        return 1 << 62  # nothing that is asked for comes later

    def submit(self, job: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        done(job(), None)

    async def run(self, job: Callable[[], T]) -> T:
        return job()

    async def close(self) -> None:
        pass


class Sent:
    """Keeps what was sent."""

    remote = "elsewhere"
    peer_identities: frozenset[str] = frozenset()
    congested = False
    queued = left_bytes = 0
    arriving = None

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.open = True

    def authenticated(self) -> None:
        pass

    def send(self, buffers: Sequence[Buffer], *, frames: int = 1) -> None:
        self.sent.append(b"".join(buffers))

    def flush(self) -> None:
        pass

    def hold_back(self, seconds: float) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        self.open = False

    def abort(self) -> None:
        self.open = False


class FewKeys:
    """A few keys."""

    def get(self, keys: Sequence[bytes]) -> tuple[list[Any], Position]:
        return [key or None for key in keys], self._position

    def scan(self, **_: object) -> Iterator[tuple[list[Any], Position]]:
        yield [(b"a", b"1"), (b"n", (1, 2))], self._position
        yield [], self._position

    def digest(self) -> tuple[bytes, Position]:
        return DIGEST, self._position

    _position = Position(PartitionLogIndex(3), GlobalLogIndex(5))


class NoRecords:
    """partitions.log.log.PartitionLog, as far as streams see it."""

    durable_index = end_position = first_global_index = 0
    first_available_index = 1
    undurable_from = hole = None

    def __init__(self, partition_id: PartitionId) -> None:
        self.partition_id = partition_id
        self.lease = Leases(60.0).add
        self.chunks = SimpleNamespace(place=lambda _: None, first_at_time=lambda _, **__: 0)

    def position_after(self, index: int) -> int:
        return 0

    position_at_global = position_after

    def first_index_at(self, position: int) -> int:
        return 1


class NobodyWaits:
    """For admission."""

    nbytes = entered = 0

    def __len__(self) -> int:
        return 0


class NoNode:
    """dispatcher.pipeline.backend.Backend, as far as sessions see it."""

    node_id = ME
    settings = SETTINGS
    cluster = SETTINGS.cluster
    lineage = "ab" * 16
    members = NOBODY
    raft = SimpleNamespace(
        admits=True,
        engine=SimpleNamespace(leader=None, term=1, commit_index=5),
        links=SimpleNamespace(connected=lambda _: False),
        members=SimpleNamespace(membership=SimpleNamespace(refill=None)),
    )
    parent = SimpleNamespace(
        agreed=frozenset(),
        global_index=5,
        voids=SimpleNamespace(count=0, kept=()),
        lifecycle=Lifecycle(),
        chosen={PartitionId(1): Chosen(Ack.DURABLE)},
    )
    choosing = SimpleNamespace(of=lambda partition_id: (partition_id, Ack.DURABLE, True))
    recovery = SimpleNamespace(over=True, complete=True)
    scrubbing = lagging = SimpleNamespace(status=dict)
    admission = SimpleNamespace(
        pace=SimpleNamespace(bytes_per_s=None),
        used=lambda *_: (0, 0),
        admitted=0,
        reserved=0,
        refused_by={},
        judged=lambda: iter(()),
    )
    signals = SimpleNamespace(failures={})
    submitting = SimpleNamespace(waiting=NobodyWaits(), gone=lambda _: None, cancel=lambda _: None)
    voiding = SimpleNamespace(check_blocked=lambda want: want, rows=lambda _: [])
    opening = SimpleNamespace(rows=lambda _: [], nothing_through=lambda: None)
    partitioning = SimpleNamespace(check_all=lambda: None, opening=opening)

    def __init__(self) -> None:
        self.clock = self.offload = Still()
        self.at_hand = AtHand(self.clock, enabled=True)
        self.streams_open = 0
        self.streams_logs = 0
        self.watched = Places("partitions are followed")
        self.comparing = SimpleNamespace(differences=[])
        self.watermarks = Watermarks(PARTITIONS)
        self.barriers = Barriers(SETTINGS.barrier, self.watermarks)
        self.submitted: list[SubmitRequest] = []
        self.read_budget = ReadBudget(bytes_max=1 << 20, segments_max=4)
        self.lately = Lately()
        self.snapshots = SimpleNamespace(serving=_serving(), taking=SimpleNamespace(stuck=()))
        self.freshness = self
        self.leaderless = SimpleNamespace(ms=0, for_long=False, check=_unheard)

    @property
    def workers(self) -> Sequence[PartitionId]:
        return self.partition_ids()

    def admits(self) -> bool:
        return True

    def serves(self, partition_id: int) -> bool:
        return partition_id in self.partition_ids()

    def partition_ids(self) -> list[PartitionId]:
        return PARTITIONS

    def cursors_partition(self) -> None:
        return None

    def partition_rows(self) -> list[list[object]]:
        return [[p, "kv", "write_ahead"] for p in PARTITIONS]

    def key_partitions(self) -> int:
        return len(PARTITIONS)

    def missing(self, partition_id: int) -> LogboomError:
        return NoSuchPartition(f"partition {partition_id}", partition_id=partition_id)

    def leader_address(self) -> str | None:
        return None

    def client_addresses(self) -> dict[str, str]:
        return {}

    def recovered(self, partitions: object = None) -> bool:
        return True

    def has_log(self, partition_id: object) -> bool:
        return True

    def look(self) -> None:
        pass

    def lone_submit(self) -> None:
        pass

    def hurry(self, partitions: object) -> None:
        pass

    def threads_of(self, partition_id: object, machine: object) -> Still:
        return self.offload

    def threads_for(self, machine: object, offload: object) -> Still:
        return self.offload

    def global_commit_index(self) -> int:
        return 5

    def role(self) -> str:
        return "follower"

    @property
    def rebuilding(self) -> Any:
        return SimpleNamespace(fenced=lambda _: False)

    @property
    def machines(self) -> dict[PartitionId, FewKeys]:
        """None whose digest could be made: that takes threads, and a loop to wait for them on."""
        return {}

    def using(self, partition_id: PartitionId) -> AbstractContextManager[FewKeys]:
        return nullcontext(FewKeys())

    def log(self, partition_id: PartitionId) -> Any:
        return NoRecords(partition_id)

    def subscribe_commits(self, partition_id: PartitionId, moved: object) -> Callable[[], None]:
        return lambda: None

    subscribe_applied = subscribe_commits

    def subscribe_ordered(self, moved: object) -> Callable[[], None]:
        return lambda: None

    def applied_index(self, partition_id: PartitionId) -> int:
        return 0

    def hole_of(self, partition_id: PartitionId) -> None:
        return None

    def lacks_void(self, partition_id: PartitionId, digest: bytes) -> bool:
        return False

    def safe_horizon(self, partitions: object, level: object) -> Horizon:
        return Horizon(GlobalLogIndex(5), None)

    @property
    def scans(self) -> Scans:
        return Scans(cast("Any", self), scans_max=1)

    @property
    def views(self) -> Any:
        return SimpleNamespace(scan=self._view)

    async def _view(
        self, partitions: Sequence[PartitionId], header: Mapping[str, Any], deadline: float, **_: object
    ) -> AsyncGenerator[tuple[dict[str, Any], list[Any]], None]:
        reads.scan_range(header)
        for partition in partitions:
            await reads.make_fresh(cast("Any", self), header, partition, deadline)
            yield reads.entries(*next(FewKeys().scan()))

    async def read_index(self, deadline: float, *, lone: bool = False) -> int:
        return 5

    async def recent(self, max_age: float, deadline: float) -> int:
        return 5

    async def index_at(self, timestamp_ms: int, deadline: float, *, principal: Hashable) -> int:
        return await Freshness(cast("Any", self)).index_at(timestamp_ms, deadline, principal=principal)

    async def wait_applied(self, *_: object, **__: object) -> None:
        pass

    def submit(self, request: SubmitRequest, done: Callable[[SubmitReply | LogboomError], None], owner: object) -> None:
        self.submitted.append(request)
        done(QuotaExceeded("enough", limit=1, used=1))

    def _steered(self, partition: PartitionId) -> str:
        return "running"

    pause = resume = freeze = thaw = _steered


def _unheard() -> None:
    """Nobody waits for what was committed since."""
    raise Unavailable("nobody leads")


def _serving() -> SnapshotServing:
    """Of a node that has one set, of nothing, at 5."""
    store = SnapshotStore(MemoryDisk(), Path("/snapshots"))
    writer = store.begin(GlobalLogIndex(5))
    written = writer.finish()
    meta = SetMeta(SETTINGS.cluster.id, *_CUT, b"", written.partitions, written.states_bytes, written.states_digest, 0)
    store.complete(writer, meta)
    empty = SimpleNamespace(
        first_available_index=1,
        durable_index=9,
        beginning=(1, DIGEST, 0),
        read_raw=lambda **_: [],
        void_behind=lambda _: None,
        lost_behind=lambda _: None,
    )
    return SnapshotServing(
        store=store,
        logs=cast("Any", dict.fromkeys(PARTITIONS, empty)),
        links=cast("Any", None),
        clock=Still(),
        offload=Still(),
        damaged=lambda *_: None,
        handed_up=lambda: 1 << 40,
    )
