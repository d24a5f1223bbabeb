"""Bugs of what readers hold, and have taken from under them; and of what those are told who wait for many nodes."""

from __future__ import annotations

from typing import Final

from chaos.sim.mutants.edit import Edit, Mutant

MUTANTS: Final = (
    Mutant(
        "scan-leaves-out",
        "Every seventh batch is planned, and left out (ScanComplete).",
        ("ScanComplete",),
        (
            Edit(
                "dispatcher.reading.merging:Merge.plan",
                "picked.append(Picked(partition, self._next[partition], place))",
                "picked.extend([Picked(partition, self._next[partition], place)] if global_index % 7 else [])",
            ),
        ),
        needs="reads_log",
    ),
    Mutant(
        "room-for-all",
        "Readers are admitted however much the others hold (I10).",
        ("I10",),
        (
            Edit(
                "dispatcher.reading.read_budget:ReadBudget._fits",
                "bytes_fit = self.nbytes + grant.nbytes <= self.bytes_max",
                "bytes_fit = True",
            ),
        ),
        needs="reads_log follows",
    ),
    Mutant(
        "read-and-kept",
        "A stream that ends keeps what it had read and not sent (I10).",
        ("I10",),
        (
            Edit(
                "dispatcher.reading.feeds:Feed._give_back",
                "if grant is not None:",
                "if grant is not None and not self._closed:",
            ),
        ),
        needs="reads_log",
    ),
    Mutant(
        "lease-ignored",
        "What somebody reads is removed (LeaseKept).",
        ("LeaseKept",),
        (Edit("partitions.log.compaction:Leases.lowest", "if now - each.taken.at < self._lease_s", "if False"),),
        needs="reads_log paced cuts_often",
    ),
    Mutant(
        "lease-left",
        "A tail that ends holds on to what it has read (I10).",
        ("I10",),
        (Edit("dispatcher.reading.tail:Tail._let_go", "self._lease.release()", "pass"),),
    ),
    Mutant(
        "scan-by-whoever",
        "A scan that is to be linearizable is answered by whoever is asked, as far as it has come (LinearizableRead).",
        ("LinearizableRead",),
        (
            Edit(
                "dispatcher.reading.scans:Scans.scan",
                "await reads.make_fresh(backend, header, partition_id, deadline, asker=asker)",
                "header.get('read', 'linearizable') == 'linearizable' or "
                "await reads.make_fresh(backend, header, partition_id, deadline, asker=asker)",
            ),
        ),
        needs="kv_partitions",
    ),
    Mutant(
        "gone-up-to-the-end",
        "What a tail cannot give at once it says is gone, up to the end (RefusedRightly).",
        ("RefusedRightly",),
        (
            Edit(
                "dispatcher.reading.tail:Tail._read_next",
                "if place is None:\n        return",
                "if place is None:\n        return\n"
                "    if int(place.global_index) % 5 == 3:\n"
                "        self._compacted(IndexCompacted('it cannot be read', first=end + 1))\n"
                "        return",
            ),
        ),
        needs="reads_log",
    ),
    Mutant(
        "scan-of-what-comes",
        "Some scans are told that all is gone that there is (RefusedRightly).",
        ("RefusedRightly",),
        (
            Edit(
                "dispatcher.reading.log_scan:LogScan._positions",
                "if first:\n",
                "if start_global > 1 and start_global % 3 == 1:\n"
                "        first = int(self._backend.global_commit_index()) + 1\n"
                "    if first:\n",
            ),
        ),
        needs="reads_log",
    ),
    Mutant(
        "metadata-leaves-out",
        "Of what records are like every fifth batch is left out (OffsetsDenseUnique).",
        ("OffsetsDenseUnique",),
        (
            Edit(
                "logboom.client.streams:LogStreams.tail_metadata",
                "self.seen(batch.global_index)",
                "if batch.global_index % 5 == 0:\n                continue\n            self.seen(batch.global_index)",
            ),
        ),
        needs="reads_log",
    ),
    Mutant(
        "tail-of-unapplied",
        "A tail of what is applied gives what is durable (BarrierSound).",
        ("BarrierSound",),
        (Edit("dispatcher.reading.tail:Tail._end_index", "if self._wanted.level is Level.APPLIED:", "if False:"),),
        needs="reads_log",
    ),
    Mutant(
        "tail-of-undurable",
        "Write-behind: a tail gives what is committed, and not synced here (BarrierSound).",
        ("BarrierSound",),
        (Edit("dispatcher.reading.tail:Tail._end_index", "self._log.durable_index", "self._log.committed_index"),),
        needs="reads_log write_behind",
    ),
    Mutant(
        "snapshotted-once-applied",
        "A barrier until a snapshot has it is answered once it is applied (BarrierSound).",
        ("BarrierSound",),
        (
            Edit(
                "dispatcher.barriers.barriers:Barriers.frontier",
                "return self._snapshotted.get(partition_id, 0)",
                "return self._watermarks.of(partition_id).applied_global_index",
            ),
        ),
        needs="waits",
    ),
    Mutant(
        "snapshotted-elsewhere",
        "A barrier until snapshots of several nodes have it is answered once that of one has (BarrierSound).",
        ("BarrierSound",),
        (
            Edit(
                "dispatcher.barriers.frontiers:Frontiers.frontier",
                "held[len(nodes) // 2 if scope is Scope.QUORUM else -1]",
                "held[0 if level is Level.SNAPSHOTTED else len(nodes) // 2 if scope is Scope.QUORUM else -1]",
            ),
        ),
        needs="waits cuts_often",
    ),
    Mutant(
        "all-is-most",
        "A barrier over all members is answered once a majority is there (BarrierSound).",
        ("BarrierSound",),
        (
            Edit(
                "dispatcher.barriers.frontiers:Frontiers.frontier",
                "held[len(nodes) // 2 if scope is Scope.QUORUM else -1]",
                "held[len(nodes) // 2]",
            ),
        ),
        needs="waits",
    ),
    Mutant(
        "gone-in-front",
        "Some scans are told that something is gone which they do not want, and end (RefusedRightly).",
        ("RefusedRightly",),
        (
            Edit(
                "dispatcher.reading.log_scan:LogScan._positions",
                "if first:\n",
                "if start_global > 1 and start_global % 3 == 1:\n        first = 1\n    if first:\n",
            ),
        ),
        needs="reads_log",
    ),
    Mutant(
        "scan-without-end",
        "A scan of what is applied gives all, and goes on waiting for more (Liveness).",
        ("Liveness",),
        (
            Edit(
                "dispatcher.reading.log_scan:LogScan._go_on",
                "if not self._wanted.follow and horizon >= self._through and self._open:",
                "if not self._wanted.follow and horizon >= self._through and self._wanted.level is Level.DURABLE:",
            ),
        ),
        needs="reads_log",
    ),
    Mutant(
        "all-that-were-known",
        "A scan of all partitions is of those that the client had heard of before (ScanComplete).",
        ("ScanComplete",),
        (
            Edit(
                "logboom.client.log_reading:LogReading.scan_log",
                "await self._reader.refresh_partitions(None, node, deadline=self._deadline(timeout))",
                "pass",
            ),
        ),
        needs="reads_log partitions_change",
    ),
    Mutant(
        "all-that-there-were",
        "A barrier over all partitions is answered without those that were created meanwhile (BarrierAll).",
        ("BarrierAll",),
        (
            Edit(
                "dispatcher.sessions.over_all:OverAll.answered",
                "if self._requests.keys().isdisjoint(request_ids):",
                "if True:",
            ),
        ),
        needs="partitions_change",
    ),
    Mutant(
        "good-writes-refused",
        "Of the requests of each client some are said to be wrong, and are not.",
        ("RefusedRightly",),
        (
            Edit(
                "dispatcher.requests.requests:parse_submit",
                "if len(partitions) != len(parts):",
                "if len(partitions) != len(parts) or parts[0].first_sequence % 4 == 3:",
            ),
        ),
    ),
    Mutant(
        "whole-states-called-damaged",
        "Of the reads some are answered as if the state were damaged, which it is nowhere.",
        ("RefusedRightly",),
        (
            Edit(
                "dispatcher.reading.reads:get",
                "if size > REPLY_BYTES_MAX:",
                "if position.applied_index % 4 == 3:\n"
                "        raise CorruptData('a value does not match its checksum')\n"
                "    if size > REPLY_BYTES_MAX:",
            ),
        ),
    ),
    Mutant(
        "good-batch-called-void",
        "Of the batches that are read some are said to be void, and are stepped over.",
        ("VoidTold",),
        (
            Edit(
                "partitions.log.chunks:ChunkReader.at",
                "if segment == NOWHERE_SEGMENT:",
                "if segment == NOWHERE_SEGMENT or position % 3 == 2:",
            ),
        ),
        needs="reads_log",
    ),
    Mutant(
        "least-of-what-is-open",
        "The least of all watermarks is told without what is still being opened (I7).",
        ("I7",),
        (Edit("dispatcher.sessions.watching:Watch._tell", "if hidden is not None:", "if False:"),),
        needs="follows",
    ),
    Mutant(
        "least-of-nothing",
        "The least of all watermarks is told as if one were being opened, of which nothing is known (FollowsAll).",
        ("FollowsAll",),
        (Edit("dispatcher.pipeline.opening:Opening.nothing_through", "default=None", "default=0"),),
        needs="follows",
    ),
)
