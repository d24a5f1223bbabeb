"""What a seed decides before anything runs: the cluster, its settings, the world, load and faults; see ``drawing``."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from chaos.sim import drawn_settings
from chaos.sim.drawn_faults import LAG_KINDS, Fault
from chaos.sim.drawn_settings import member_of
from chaos.sim.network import NetworkProfile
from chaos.sim.stories import Stories
from logboom.settings import NodeSettings, Settings
from logboom.types import DurabilityMode


@dataclass(frozen=True, slots=True)
class Parameters:
    """All of it, a function of the seed alone."""

    seed: int
    nodes: int
    seconds: float
    """Of faults; the liveness phase comes after."""
    settings: Settings
    """Without the node's own section."""
    network: NetworkProfile
    slowest_s: float
    """A disk job on a quiet day, at most."""
    clients: int
    think_s: float
    """A client's mean pause between two operations."""
    batch_max: int
    faults: tuple[Fault, ...]
    victims: frozenset[int]
    """The minority whose data may be damaged: of everything a good copy is left elsewhere."""
    kinds: tuple[str, ...]
    partitions_change: bool = False
    """Clients create and destroy some."""
    reads_log: bool = False
    """Clients tail, scan and fetch; and look at all state at once."""
    begun_go: bool = False
    """They also destroy such as the cluster began with."""
    members_change: bool = False
    """An operator adds and removes nodes."""
    blackout: float | None = None
    """When all nodes lose power at once, although something is written behind."""
    waits: bool = False
    """Clients wait in all scopes, levels and modes."""
    stories: Stories = field(default_factory=Stories)
    admission_wait_s: float = 0.0
    """Half of what clients write waits up to so long for admission."""
    gives_up: bool = False
    """Clients lose patience with writes now and then, and cancel them."""
    acks: bool = False
    """Clients leave it to the settings what their answers wait for, now and then."""
    narrow: bool = False
    """Buffers and quotas are small."""

    @property
    def write_behind(self) -> bool:
        """Some partition is."""
        cluster = self.settings.cluster
        return any(cluster.partition(p).mode is DurabilityMode.WRITE_BEHIND for p in range(cluster.partitions))

    @property
    def outdates(self) -> bool:
        """Records are removed by age."""
        return self.settings.snapshot.retain_log_ms > 0 and bool(self.log_partitions)

    @property
    def lags(self) -> bool:
        """Workers are slow now and then, and the ladder of lag has short rungs."""
        return not set(LAG_KINDS).isdisjoint(self.kinds)

    @property
    def disks_lost(self) -> bool:
        """A node comes back with an empty disk."""
        return "lose_disk" in self.kinds

    @property
    def put_back(self) -> bool:
        """A node comes back with an earlier disk."""
        return "put_back" in self.kinds

    @property
    def follows(self) -> bool:
        """Somebody follows logs and watermarks all the time."""
        return self.stories.follows

    @property
    def hands_on(self) -> bool:
        """Clients hand tokens to others."""
        return self.stories.hands_on

    @property
    def restores(self) -> bool:
        """In the middle all nodes are made anew from a backup, where it is known what that gives up."""
        return self.stories.restores and self.blackout is None and not (self.follows or self.members_change)

    @property
    def writes_tasks(self) -> bool:
        """Tasks write, as those of Spark do."""
        return self.stories.writes_tasks and not self.restores

    @property
    def orderly(self) -> bool:
        """Nodes are stopped in order, too, and none is gone at once when it has to stop itself."""
        return self.stories.orderly and not self.restores

    @property
    def asks(self) -> bool:
        """Somebody asks for all that operators ask for."""
        return self.stories.asks and not self.restores

    @property
    def crowds(self) -> bool:
        """Clients write at once, and may share batches."""
        return self.stories.crowds and self.settings.log.mixed_bytes_max > 0

    @property
    def begins_alone(self) -> bool:
        """One node begins the cluster, and others come."""
        return self.members_change and self.nodes == 1

    @property
    def shrinks(self) -> bool:
        """In the end the first node alone is left of the cluster, another comes, and the first one loses its disk."""
        return self.stories.shrinks and self.members_change

    @property
    def moves(self) -> bool:
        """Members change, and some move to other addresses."""
        return self.stories.moves and self.members_change

    @property
    def sets(self) -> bool:
        """Clients set how writes to partitions are answered."""
        return self.stories.sets

    @property
    def transfers(self) -> bool:
        """Clients write over several keys at once."""
        return self.stories.transfers and bool(self.kv_partitions)

    @property
    def rated(self) -> bool:
        """It is bounded how fast somebody may write."""
        return drawn_settings.has_rates(self.settings.admission)

    @property
    def paced(self) -> bool:
        """It is bounded how fast somebody may read."""
        return self.settings.reads.principal_bytes_per_s > 0

    @property
    def shares(self) -> bool:
        """Budgets are so small that somebody alone comes to the end of his share."""
        admission = self.settings.admission
        return admission.fair_share_percent < 100 and admission.node_ops <= drawn_settings.SMALL_BUDGET

    @property
    def chunks(self) -> bool:
        """Whatever waits for a small budget counts as large, and gets it in chunks."""
        return self.admission_wait_s > 0 and drawn_settings.has_chunks(self.settings.admission)

    @property
    def groups(self) -> bool:
        """Several batches are applied at once."""
        return self.settings.apply.batches_max > 1 and self.settings.apply.batch_bytes > 1

    @property
    def cuts_often(self) -> bool:
        """So that somebody is behind when one comes."""
        return self.settings.snapshot.entries <= drawn_settings.MANY_CUTS

    @property
    def forgets_producers(self) -> bool:
        """Only few are remembered."""
        return self.settings.apply.producers_max <= drawn_settings.FEW_OF_CROWDS

    @property
    def kv_partitions(self) -> list[int]:
        """Partitions with keys."""
        cluster = self.settings.cluster
        return [p for p in range(cluster.partitions) if cluster.partition(p).state_machine == "kv"]

    @property
    def log_partitions(self) -> list[int]:
        """Partitions without."""
        cluster = self.settings.cluster
        return [p for p in range(cluster.partitions) if cluster.partition(p).state_machine == "log"]

    def of_node(self, index: int) -> Settings:
        """The settings of one node."""
        member = self.settings.cluster.members[index]
        return msgspec.structs.replace(self.settings, node=NodeSettings(id=member.id, data_dir=f"/{member.id}"))

    def of_joining(self, number: int) -> Settings:
        """Those of one that is added later."""
        member = member_of(number)
        cluster = msgspec.structs.replace(self.settings.cluster, members=(*self.settings.cluster.members, member))
        node = NodeSettings(id=member.id, data_dir=f"/{member.id}", join=True)
        return msgspec.structs.replace(self.settings, cluster=cluster, node=node)
