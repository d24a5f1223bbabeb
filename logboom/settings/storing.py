"""The parent log, the partitions' logs and states, and what is kept of them."""

from __future__ import annotations

from logboom.settings.section import Section
from logboom.types import GIB, KIB, MIB


class RaftSettings(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parent log."""

    heartbeat_ms: int = 30
    """Time between a leader's signs of life."""
    election_min_ms: int = 150
    """Shortest silence of a leader after which a follower stands for election."""
    election_max_ms: int = 300
    """Longest silence of a leader before a follower stands for election; each draws its own between `election_min_ms`
    and this."""
    election_patience_ms: int = 1_000
    """Followers stretch their timeouts to twice the longest silence of late, but to no more than this. A value at or
    below `election_max_ms` switches the stretching off."""
    fallback_ms: int = 500
    """A leader without a quorum's answers for this long steps down; one whose disk hangs for so long falls silent."""
    spare_linger_ms: int = 5
    """With one command under way, followers that its quorum does without get it so much later, with those after it."""
    commit_linger_ms: int = 2
    """Longest time after which followers hear of a new commit index; the next entries take it along."""
    entry_bytes_max: int = 64 * KIB
    """Routing entries are packed into Raft entries up to this."""
    message_bytes_max: int = 1 * MIB
    """Bytes of entries that one append_entries message carries, at most."""
    transfer_ms: int = 1_000
    """A leader that is stopped (SIGTERM) first hands leadership over, and gives that up after this time."""
    journal_segment_bytes: int = 16 * MIB
    """Size of one file of the parent journal."""
    inline_sync_bytes_max: int = 16 * KIB
    """A group sync of at most two files and so much runs on the event loop itself, 0: never."""
    redo_bytes_max: int = 48 * KIB
    """A partition's share of a group sync up to this is synced with the journal and not in its own file, 0: never."""
    redo_unsettled_bytes: int = 8 * MIB
    """With so many bytes carried by the journal the partitions' own files are synced."""
    proposals_max: int = 16_384
    """Requests proposed and not yet committed."""
    unsynced_bytes_max: int = 64 * MIB
    """Payload that a follower is sent beyond what it has said is synced there: one whose disk is slower than its link
    holds so much in its memory. It gets the rest, from the leader's logs, as its disk takes it."""
    agree_after_s: int = 86_400
    """What batches that several producers share need of all nodes is used once all have known it for so long, 0: at
    once. Until then nodes can be put back to the release that they had. Where nothing was ordered yet nobody waits."""


class LogSettings(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Partition logs (AOF)."""

    segment_bytes: int = 64 * MIB
    """A segment file is sealed at this size."""
    segment_records: int = 16 * 1024 * 1024
    """A segment file is sealed at this many records."""
    segment_ms: int = 604_800_000
    """Where `snapshot.retain_log_ms` is set, a segment file is sealed with what comes so long after its first record,
    0: never for its age."""
    batch_bytes_max: int = 4 * MIB
    """Largest batch; a request's share for one partition is one batch."""
    mixed_bytes_max: int = 16 * KIB
    """Requests of up to 64 records and so many bytes that come at once, of whomever, share a batch; 0: none does."""
    linger_ms: int = 20
    """Write-behind: the longest time between a write and its sync."""
    recent_bytes: int = 4 * MIB
    """Batches of a partition kept in memory until they are committed, and as much until they are applied, 0: none."""
    recent_node_bytes: int = 64 * MIB
    """`recent_bytes` of all partitions of a node: with many each gets its share of this."""
    page_cache_bytes: int = 256 * MIB
    """Per node: so much of what was written last stays in the page cache, for readers that are close to the end. What
    is older is given back to the system, and read from the disk when somebody asks, 0: the kernel decides."""
    open_files_max: int = 64
    """Sealed segments kept open per partition, least recently used closed first."""
    open_files_node_max: int = 1_024
    """Sealed segments kept open on a node: with many partitions each gets its share of this, one at least; fewer where
    the process's descriptors (`ulimit -n`) are few."""
    reader_lease_ms: int = 60_000
    """What somebody tails is not removed, unless the reader takes nothing for so long."""


class ApplySettings(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Workers."""

    batch_bytes: int = 4 * MIB
    """Bytes applied in one transaction, at most (one batch more may go over)."""
    batches_max: int = 1024
    """Batches applied in one transaction, at most; one that several producers share counts as one for each of them."""
    inline_bytes: int = 16 * KIB
    """A few commands in memory, together up to this, are applied by `kv` on the event loop itself, and a few keys read
    there; 0: never."""
    rows_min: int = 256
    """A group of `kv` that only puts so many, all of one length, is kept in arrays until it is saved: quicker than
    objects for many, slower for few; 0: never."""
    linger_ms: int = 100
    """Shortest time between two groups of a partition while nobody waits for its effects."""
    unsaved_bytes: int = 32 * MIB
    """Memory for effects of a partition that are not saved yet; twice that while they are being saved."""
    replay_bytes: int = 32 * MIB
    """A partition that has applied so much of its log since it last saved does so: a crash repeats it."""
    unsaved_ms: int = 5_000
    """Longest time until effects are saved: a crash repeats less than twice that, many times faster."""
    unsaved_node_bytes: int = 256 * MIB
    """`unsaved_bytes` and `replay_bytes` of all partitions of a node: with many that have state each gets its share of
    this, at least 64 KiB."""
    retry_initial_ms: int = 50
    """First pause after a failed apply; each further one is twice as long."""
    retry_max_ms: int = 2_000
    """Longest pause between two attempts to apply."""
    retry_attempts_max: int = 8
    """After so many failed attempts the partition is paused; not for want of room on the disk, of file descriptors, or
    of memory for `kv`: that is waited for."""
    kv_map_bytes: int = 64 * 1024 * MIB
    """Address space of one partition's LMDB, less with more than a thousand partitions; disk is used as needed."""
    producers_max: int = 65_536
    """Producers remembered per partition; the one that wrote longest ago is forgotten first. This and the next two must
    be equal on all nodes, and stay as the cluster began: they decide what is applied. A restore may change them."""
    producer_ranges_max: int = 1_024
    """Separate applied ranges above a producer's floor."""
    producer_receipts: int = 16
    """Latest receipts with results remembered per producer."""


class SnapshotSettings(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Snapshots, and what is removed below them. The leader decides when; every node takes its own at that index."""

    log_bytes: int = 2 * GIB
    """A snapshot is due when so much was applied since the last, and as much as the last set is large (what is kept in
    `log` partitions for ever counts a sixteenth there). 0: never for that."""
    entries: int = 1_000_000
    """A snapshot is due when so many routing entries were committed since the last, 0: never for that."""
    age_ms: int = 3_600_000
    """A snapshot is due so long after the last, if anything was committed since, 0: never for that."""
    keep: int = 2
    """Sets kept, at least 2. Logs are compacted to the last but one: whoever is given the last can go on from there."""
    retain_bytes: int = 64 * MIB
    """Of a partition with state: payload kept below what is compacted, for readers (in whole segments)."""
    retain_log_bytes: int = 0
    """Of a `log` partition, whose records are kept nowhere else: payload kept, 0: whatever its size."""
    retain_log_ms: int = 0
    """Of a `log` partition: how long records are kept, 0: for ever. Whole segments go, when logs are compacted."""
    bytes_per_s: int = 64 * MIB
    """How fast a snapshot is written, and fetched from another node."""
    hold_ms: int = 21_600_000
    """A set that a node or a backup fetches is kept beyond its time, with all that follows it in the logs, by the
    leader also while that node loads it and catches up, but no longer than this: then whoever fetches it begins with a
    newer one. 0: as long as anybody asks for it, or a member that has been given it is not back."""
    dump_stall_ms: int = 120_000
    """A snapshot is given up when a state machine's dump has given nothing for so long: a call of yours hangs. Until it
    returns, or its partition is destroyed, that node takes none of its own and keeps those of others. So it does where
    a partition that a snapshot needs has not been opened for so long. 0: never."""
    load_stall_ms: int = 120_000
    """While a state is made anew: with a machine that takes nothing for so long others no longer wait. 0: never."""


class ScrubSettings(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is at rest is read again now and then, to find damage while other nodes have a good copy."""

    bytes_per_s: int = 16 * MIB
    """How fast it reads."""
    pause_ms: int = 21_600_000
    """Time between two passes over everything; the first comes so long after a start, at most a minute. 0: never."""
    stall_ms: int = 120_000
    """A state that has given nothing for so long is passed over, until that call of yours returns. 0: never."""
