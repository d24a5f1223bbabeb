"""How a seed decides, before anything runs, what its run is about (swarm testing).

Each seed switches whole kinds of faults off, so that some runs are all about one thing.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

import msgspec

from chaos.sim import drawn_settings
from chaos.sim.drawn_faults import DAMAGE, KINDS, LAG_KINDS, LEADER, Fault, schedule
from chaos.sim.network import NetworkProfile
from chaos.sim.parameters import Parameters
from chaos.sim.stories import told
from logboom.settings import AdmissionSettings
from logboom.types import KIB, DurabilityMode

BLACKOUTS: Final = 0.4
"""Share of the seeds that write behind in which all nodes lose power at once."""
PARTITIONS_CHANGE: Final = 0.35
"""Share of the seeds in which partitions come and go."""
READS_LOG: Final = 0.5
"""Share of the seeds in which the logs are read while all that happens."""
BEGUN_GO: Final = 0.5
"""Of those, in so many also the ones that the cluster began with."""
MEMBERS_CHANGE: Final = 0.33
"""Share of the seeds in which nodes come and go."""
JOURNALS_ROT: Final = 0.2
"""Share of the seeds in which they do, and of the faults there that are just that."""
DISKS_LOST: Final = 0.15
"""Share of the seeds in which a victim's disk is made anew, and of the faults there that are that."""
PUT_BACK: Final = 0.15
"""Share of the seeds in which a victim's disk is put back to what it was, and of the faults there that are that."""
STATES_ROT: Final = 0.2
"""Share of the seeds in which what a victim has saved of states does,"""
STATES_ROT_MIN, STATES_ROT_MAX = 3, 6
"""so often,"""
STATES_DICE: Final = 0x57A7E5
"""by these dice."""
SETS_LOST: Final = 0.15
"""Share of the seeds in which a victim loses its snapshot sets,"""
SETS_LOST_MIN, SETS_LOST_MAX = 3, 5
"""so often, the last time at the end of the faults,"""
SETS_DICE: Final = 0x5E75
"""by these dice."""
OUTDATING: Final = 0.15
"""Share of the seeds in which records are removed by age."""
HELD_BRIEFLY: Final = 0.3
"""Share of the seeds in which a snapshot set is hardly kept for those who fetch it."""
RATED: Final = 0.15
"""Share of the seeds in which it is bounded how fast somebody may write,"""
PACED: Final = 0.15
"""and of those in which it is how fast somebody may read."""
LIGHT: Final = 0.15
"""Share of the seeds in which those who write much are slowed down where others would notice."""
GIVE_UP: Final = 0.5
"""Share of the seeds in which clients wait for admission, and do not always wait to the end."""
WAITS: Final = 0.6
"""Share of the seeds in which clients wait in every way."""
NARROW: Final = 0.3
"""Share of the seeds in which buffers and quotas are small."""
ACKS: Final = 0.4
"""Share of the seeds in which the settings say what answers wait for."""
THIN: Final = 0.2
"""Share of the seeds in which lines between nodes carry little, and of the faults there that are that."""
UNHEARD: Final = 0.2
"""Share of the seeds in which lines to clients suffer, and of the faults there that are that."""
SCARCE: Final = 0.2
"""Share of the seeds in which code takes time, as processors are scarce, and of the faults there that are that."""
LAGS: Final = 0.35
"""Share of the seeds with a ladder of lag that has short rungs,"""
LAG_SHARE: Final = 0.25
"""and of the faults there that make workers slow."""


def draw(seed: int, *, seconds: float = 60.0) -> Parameters:
    """Everything that the seed decides."""
    rng = random.Random(seed)
    nodes = 3 if rng.random() < 0.8 else 5
    cluster = drawn_settings.cluster(rng, nodes)
    behind = any(cluster.partition(p).mode is DurabilityMode.WRITE_BEHIND for p in range(cluster.partitions))
    victims = frozenset(rng.sample(range(nodes), (nodes - 1) // 2))
    kinds = tuple(sorted(kind for kind in KINDS if rng.random() < 0.6)) or ("kill",)
    if behind:
        kinds = tuple(k for k in kinds if k != "power_all")
    drawn = Parameters(
        seed=seed,
        nodes=nodes,
        seconds=seconds,
        settings=drawn_settings.settings(rng, cluster),
        network=NetworkProfile(
            delay_max_s=rng.choice([0.0005, 0.002, 0.01]),
            loss=rng.choice([0.0, 0.0, 0.005]),
            split=rng.choice([0.0, 0.02, 0.2]),
        ),
        slowest_s=rng.choice([0.001, 0.005, 0.03]),
        clients=rng.randint(2, 4),
        think_s=rng.choice([0.5, 0.7, 1.0]) * nodes / 3,  # more nodes, more work for each operation
        batch_max=rng.choice([1, 5, 12]),
        faults=schedule(rng, kinds, nodes, seconds),
        victims=victims,
        kinds=kinds,
        stories=told(seed),
    )
    drawn = _contested(drawn) if rng.random() < 0.4 else drawn
    drawn = replace(drawn, settings=msgspec.structs.replace(drawn.settings, snapshot=drawn_settings.snapshots(rng)))
    drawn = _scrubbed(drawn, rng)
    drawn = replace(drawn, partitions_change=rng.random() < PARTITIONS_CHANGE)
    drawn = replace(drawn, begun_go=drawn.partitions_change and rng.random() < BEGUN_GO)
    drawn = _moving(drawn, rng) if rng.random() < MEMBERS_CHANGE else drawn
    drawn = _damaged(_darkened(drawn, rng, seconds), rng, "rot_journal", JOURNALS_ROT)
    drawn = replace(drawn, waits=rng.random() < WAITS)
    drawn = _outdating(_lagging(_read(_admitted(drawn, rng), rng), rng), rng)
    moves = drawn.members_change  # that has a story of its own of lost disks
    drawn = _damaged(drawn, rng, "lose_disk", DISKS_LOST, never=moves)
    drawn = _damaged(drawn, rng, "put_back", PUT_BACK, never=moves)
    for later in (
        _forgetting,
        _acknowledged,
        _narrow,
        _rated,
        _paced,
        _thinned,
        _impatient,
        _held_briefly,
        _slowed,
        _light,
    ):
        drawn = later(drawn, rng)
    drawn = replace(drawn, settings=drawn_settings.in_rows(rng, drawn.settings))
    return _losing_sets(_rotting(_aged(_unheard(_crowded(drawn, rng), rng), rng)))


def _losing_sets(drawn: Parameters) -> Parameters:
    """In some, a victim's snapshot sets are gone now and then, beside everything else. Has dice of its own."""
    rng = random.Random(drawn.seed ^ SETS_DICE)
    if rng.random() >= SETS_LOST or not drawn.victims or drawn.blackout is not None or drawn.restores:
        return drawn
    count, most = rng.randint(SETS_LOST_MIN, SETS_LOST_MAX), max(drawn.seconds - 1.0, 1.0)
    times = [rng.uniform(1.0, most) for _ in range(count - 1)] + [most]
    losses = [Fault(at, "lose_sets", LEADER, rng.uniform(0.05, 1.0), rng.getrandbits(32)) for at in times]
    faults = tuple(sorted([*drawn.faults, *losses], key=lambda fault: fault.at))
    return replace(drawn, faults=faults, kinds=tuple(sorted({*drawn.kinds, "lose_sets"})))


def _rotting(drawn: Parameters) -> Parameters:
    """In some, what a victim has saved of a state changes now and then, beside everything else. Has dice of its own."""
    rng = random.Random(drawn.seed ^ STATES_DICE)
    able = drawn.victims and drawn.kv_partitions and drawn.blackout is None and not drawn.restores
    if rng.random() >= STATES_ROT or not able:
        return drawn
    count, most = rng.randint(STATES_ROT_MIN, STATES_ROT_MAX), max(drawn.seconds - 1.0, 1.0)
    rots = [Fault(rng.uniform(1.0, most), "rot_state", LEADER, 1.0, rng.getrandbits(32)) for _ in range(count)]
    faults = tuple(sorted([*drawn.faults, *rots], key=lambda fault: fault.at))
    return replace(drawn, faults=faults, kinds=tuple(sorted({*drawn.kinds, "rot_state"})))


def _damaged(drawn: Parameters, rng: random.Random, kind: str, share: float, *, never: bool = False) -> Parameters:
    """In some, a victim's disk suffers in the place of many another fault."""
    if rng.random() >= share or never or not drawn.victims or drawn.blackout is not None:
        return drawn
    faults = tuple(replace(f, kind=kind) if rng.random() < share else f for f in drawn.faults)
    return replace(drawn, faults=faults, kinds=tuple(sorted({*drawn.kinds, kind})))


def _outdating(drawn: Parameters, rng: random.Random) -> Parameters:
    """In some, what is in ``log`` partitions is kept for a few seconds only."""
    if rng.random() >= OUTDATING:
        return drawn
    snapshot = msgspec.structs.replace(drawn.settings.snapshot, retain_log_ms=rng.choice([1_000, 5_000, 20_000]))
    return replace(drawn, settings=msgspec.structs.replace(drawn.settings, snapshot=snapshot))


def _aged(drawn: Parameters, rng: random.Random) -> Parameters:
    """Where records go by age: segments end by theirs. Drawn last."""
    if not drawn.settings.snapshot.retain_log_ms:
        return drawn
    segment_ms = rng.choice([200, 2_000, drawn.settings.log.segment_ms])
    log = msgspec.structs.replace(drawn.settings.log, segment_ms=segment_ms)
    return replace(drawn, settings=msgspec.structs.replace(drawn.settings, log=log))


def _forgetting(drawn: Parameters, rng: random.Random) -> Parameters:
    """In some, hardly anything is remembered of producers; of those that are tasks all is. Drawn last."""
    few = drawn_settings.FEW_OF_CROWDS if drawn.stories.crowds else drawn_settings.FEW_PRODUCERS
    apply = drawn_settings.forgetful(rng, drawn.settings.apply, keeps=drawn.writes_tasks, few=few)
    return replace(drawn, settings=msgspec.structs.replace(drawn.settings, apply=apply))


def _acknowledged(drawn: Parameters, rng: random.Random) -> Parameters:
    """In some, the settings say what answers wait for, and clients do not. Drawn last."""
    if rng.random() >= ACKS:
        return drawn
    cluster = drawn_settings.acknowledged(rng, drawn.settings.cluster)
    return replace(drawn, acks=True, settings=msgspec.structs.replace(drawn.settings, cluster=cluster))


def _narrow(drawn: Parameters, rng: random.Random) -> Parameters:
    """In some, buffers and quotas are small, and little is on its way at a time. Drawn last."""
    if rng.random() >= NARROW:
        return drawn
    network = replace(drawn.network, window_bytes=rng.choice([1 * KIB, drawn.network.window_bytes]))
    return replace(drawn, narrow=True, network=network, settings=drawn_settings.narrow(rng, drawn.settings))


def _darkened(drawn: Parameters, rng: random.Random, seconds: float) -> Parameters:
    """In some of those that write behind, all nodes lose power at once."""
    dark, at = rng.random() < BLACKOUTS, rng.uniform(0.2, 0.8) * seconds
    if not (dark and drawn.write_behind) or drawn.members_change:
        return drawn
    return replace(drawn, blackout=at, faults=tuple(f for f in drawn.faults if f.kind not in DAMAGE))


def _moving(drawn: Parameters, rng: random.Random) -> Parameters:
    """Members change: from one node on, or from as many as were drawn. At most one at a time is a victim."""
    first = rng.choice([1, drawn.nodes, drawn.nodes])
    settings, victims, spared = drawn.settings, sorted(drawn.victims)[:1], frozenset[str]()
    if first == 1:
        cluster = msgspec.structs.replace(settings.cluster, members=settings.cluster.members[:1])
        settings, victims, spared = msgspec.structs.replace(settings, cluster=cluster), [], DAMAGE
    return replace(
        drawn,
        nodes=first,
        settings=settings,
        members_change=True,
        think_s=drawn.think_s / drawn.nodes * 4,  # as many as there are on the average
        victims=frozenset(victims),
        kinds=tuple(kind for kind in drawn.kinds if kind not in spared),
        faults=tuple(fault for fault in drawn.faults if fault.kind not in spared),
    )


def _read(drawn: Parameters, rng: random.Random) -> Parameters:
    """Drawn late, so that all else is as it was."""
    settings = msgspec.structs.replace(drawn.settings, reads=drawn_settings.reads(rng))
    return replace(drawn, settings=settings, reads_log=rng.random() < READS_LOG)


def _lagging(drawn: Parameters, rng: random.Random) -> Parameters:
    """In some, workers are slow in the place of many another fault. Drawn last, so that all else is as it was."""
    if rng.random() >= LAGS:
        return drawn
    lag = drawn_settings.lag(rng)
    faults = tuple(replace(f, kind=rng.choice(LAG_KINDS)) if rng.random() < LAG_SHARE else f for f in drawn.faults)
    settings = msgspec.structs.replace(drawn.settings, lag=lag)
    return replace(drawn, settings=settings, faults=faults, kinds=tuple(sorted({*drawn.kinds, *LAG_KINDS})))


def _scrubbed(drawn: Parameters, rng: random.Random) -> Parameters:
    """Half of them read again what is at rest; drawn last, so that all else is as it was."""
    scrub = drawn_settings.scrub(rng)
    return replace(drawn, settings=msgspec.structs.replace(drawn.settings, scrub=scrub))


def _admitted(drawn: Parameters, rng: random.Random) -> Parameters:
    """Half of them have hardly any budget, and clients that wait for it; drawn last, too."""
    if rng.random() < 0.5:
        return drawn
    admission = drawn_settings.scarce(rng, drawn.settings.admission, most=drawn.batch_max * 2)
    settings = msgspec.structs.replace(drawn.settings, admission=admission)
    return replace(drawn, settings=settings, admission_wait_s=rng.choice([0.0, 0.2, 2.0]))


def _rated(drawn: Parameters, rng: random.Random) -> Parameters:
    """In some, whoever writes much writes faster than is let in; drawn last."""
    return drawn if rng.random() >= RATED else _admitting(drawn, drawn_settings.rates(rng, drawn.settings.admission))


def _paced(drawn: Parameters, rng: random.Random) -> Parameters:
    """In some, whoever reads much reads faster than is given out; drawn last."""
    if rng.random() >= PACED:
        return drawn
    reads = drawn_settings.read_rates(rng, drawn.settings.reads)
    return replace(drawn, settings=msgspec.structs.replace(drawn.settings, reads=reads))


def _thinned(drawn: Parameters, rng: random.Random) -> Parameters:
    """In some, lines are thin in the place of many another fault, for longer than other faults last; drawn last."""
    if rng.random() >= THIN:
        return drawn
    faults = [
        replace(f, kind="thin_lines", duration=f.duration * rng.choice([1, 4])) if rng.random() < THIN else f
        for f in drawn.faults
    ]
    return replace(drawn, faults=tuple(faults), kinds=tuple(sorted({*drawn.kinds, "thin_lines"})))


def _impatient(drawn: Parameters, rng: random.Random) -> Parameters:
    """In some of those where clients wait to be admitted; drawn last."""
    return replace(drawn, gives_up=drawn.admission_wait_s > 0 and rng.random() < GIVE_UP)


def _held_briefly(drawn: Parameters, rng: random.Random) -> Parameters:
    """In some, a set that is fetched goes soon all the same. Drawn last."""
    if rng.random() >= HELD_BRIEFLY:
        return drawn
    snapshot = msgspec.structs.replace(drawn.settings.snapshot, hold_ms=rng.choice([200, 1_000, 5_000]))
    return replace(drawn, settings=msgspec.structs.replace(drawn.settings, snapshot=snapshot))


def _slowed(drawn: Parameters, rng: random.Random) -> Parameters:
    """In some, processors are scarce in the place of many another fault. Drawn last."""
    if rng.random() >= SCARCE:
        return drawn
    faults = [
        replace(f, kind="slow_cpu", duration=f.duration * rng.choice([1, 4])) if rng.random() < SCARCE else f
        for f in drawn.faults
    ]
    return replace(drawn, faults=tuple(faults), kinds=tuple(sorted({*drawn.kinds, "slow_cpu"})))


def _unheard(drawn: Parameters, rng: random.Random) -> Parameters:
    """In some, lines between nodes and clients suffer in the place of many another fault. Drawn last."""
    if rng.random() >= UNHEARD:
        return drawn
    faults = tuple(replace(f, kind="client_lines") if rng.random() < UNHEARD else f for f in drawn.faults)
    return replace(drawn, faults=faults, kinds=tuple(sorted({*drawn.kinds, "client_lines"})))


def _light(drawn: Parameters, rng: random.Random) -> Parameters:
    """In some, who writes little may notice little of the others; drawn last."""
    return drawn if rng.random() >= LIGHT else _admitting(drawn, drawn_settings.pace(rng, drawn.settings.admission))


def _crowded(drawn: Parameters, rng: random.Random) -> Parameters:
    """In some, clients come in crowds, and share batches. Drawn last."""
    crowd_s = rng.choice([0.02, 0.1]) if drawn.stories.crowds else 0.0
    settings = drawn_settings.sharing(rng, drawn.settings)
    return replace(drawn, settings=settings, network=replace(drawn.network, crowd_s=crowd_s))


def _admitting(drawn: Parameters, admission: AdmissionSettings) -> Parameters:
    return replace(drawn, settings=msgspec.structs.replace(drawn.settings, admission=admission))


def _contested(drawn: Parameters) -> Parameters:
    """Everybody loses patience at nearly the same time: several stand in one term."""
    raft = drawn.settings.raft
    raft = msgspec.structs.replace(raft, election_max_ms=raft.election_min_ms * 5 // 4)
    return replace(drawn, settings=msgspec.structs.replace(drawn.settings, raft=raft))
