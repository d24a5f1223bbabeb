"""Bugs of the write flow and of what clients are told: dedupe, barriers, watermarks, budgets."""

from __future__ import annotations

from typing import Final

from chaos.sim.mutants.edit import Edit, Mutant

PIPELINE: Final = "dispatcher.pipeline.pipeline:Pipeline."
DEDUPE: Final = "partitions.apply.dedupe:Dedupe."

MUTANTS: Final = (
    Mutant(
        "no-dedupe",
        "Whatever is sent again is applied again (I5).",
        ("I8", "I5", "ReadYourWrites", "TokenKept"),
        (
            Edit(DEDUPE + "decide", "if header.producer == NO_PRODUCER:", "if True:"),
            Edit(DEDUPE + "lookup", "known = self._producers.get(producer)", "known = None"),
        ),
    ),
    Mutant(
        "log-counts-twice",
        "A ``log`` partition counts what is sent again as if it had taken effect (I5).",
        ("NoPhantom",),
        (
            Edit(
                "partitions.machines.log:LogMachine.apply",
                "records += batch.count - sum(stop - start for start, stop in batch.skip)",
                "records += batch.count",
            ),
        ),
        needs="log_partitions",
    ),
    Mutant(
        "dedupe-by-attempt",
        "Every attempt of a request has sequence numbers of its own (I5).",
        ("I8", "ReadYourWrites", "TokenKept"),
        (
            Edit(
                "logboom.client.submits:Submitter._header",
                "part.first_sequence,",
                "self.sequences(part.partition_id).take(part.records.count),",
            ),
        ),
    ),
    Mutant(
        "lost-is-refused",
        "What a leader loses with its leadership is said to have had no effect (I9).",
        ("I8", "NoPhantom"),
        (
            Edit(
                "dispatcher.pipeline.pending:Pending.lost",
                'UnknownOutcome("leadership was lost before the request was committed; send it again")',
                'DeadlineExceeded("leadership was lost before the request was committed", outcome="not_applied")',
            ),
        ),
    ),
    Mutant(
        "late-is-refused",
        "What no answer has come to in time is said to have had no effect (I9).",
        ("I8", "NoPhantom"),
        (
            Edit(
                "logboom.client.attempts:Attempts.too_late",
                '"unknown" if self._writes and (sent or self._doubt) else "not_applied"',
                '"not_applied"',
            ),
        ),
    ),
    Mutant(
        "doubt-forgotten",
        "An attempt that is refused is said to have had no effect, whatever became of the one before (I9).",
        ("I8", "NoPhantom"),
        (
            Edit(
                "logboom.client.attempts:Attempts.failed",
                'self._doubt |= self._writes and error.outcome != "not_applied"',
                "pass",
            ),
        ),
    ),
    Mutant(
        "durable-at-commit",
        "A write that waits until it is durable is answered once it is committed (ReceiptTrue).",
        ("ReceiptTrue",),
        (
            Edit(
                "dispatcher.pipeline.pending:Pending._committed",
                "if request.wait in (Level.COMMITTED, Level.ORDERED):",
                "if request.wait in (Level.COMMITTED, Level.ORDERED, Level.DURABLE):",
            ),
        ),
        needs="write_behind",
    ),
    Mutant(
        "applied-at-commit",
        "A write that waits until it is applied is answered once it is committed (ReceiptTrue).",
        ("ReceiptTrue",),
        (
            Edit(
                "dispatcher.pipeline.pending:Pending._committed",
                "if request.wait in (Level.COMMITTED, Level.ORDERED):",
                "if request.wait in (Level.COMMITTED, Level.ORDERED, Level.APPLIED):",
            ),
            Edit("dispatcher.pipeline.pending:Pending._applied", "if request.wait is Level.APPLIED:", "if False:"),
        ),
    ),
    Mutant(
        "linearizable-at-commit",
        "A write to a linearizable partition is answered as the request says (ReceiptTrue).",
        ("ReceiptTrue",),
        (
            Edit(
                "dispatcher.requests.requests:acknowledged_at",
                "any(is_linearizable(cluster, chosen, p) for p in partitions)",
                "False",
            ),
        ),
        needs="acks",
    ),
    Mutant(
        "passed-on-as-less",
        "A request that is passed on to the leader waits only until it is committed (ReceiptTrue).",
        ("ReceiptTrue",),
        (Edit("dispatcher.requests.requests:encode_submit", "else request.wait.value", 'else "committed"'),),
    ),
    Mutant(
        "passed-on-and-kept",
        "What a node passes on to the leader counts on when it is answered (I10).",
        ("I10",),
        (Edit("dispatcher.pipeline.forwarding:Forwarding._take", "self._bytes -= found.nbytes", "pass"),),
    ),
    Mutant(
        "barrier-early",
        "A barrier is answered one global index too early (BarrierSound).",
        ("BarrierSound",),
        (
            Edit(
                "dispatcher.barriers.barriers:Barriers._goal",
                "self.frontier(p, want.level, want.reach) < target",
                "self.frontier(p, want.level, want.reach) < target - 1",
            ),
            Edit(
                "dispatcher.barriers.barriers:Barriers._wake",
                "reached = self.frontier(partition_id, *key)",
                "reached = self.frontier(partition_id, *key) + 1",
            ),
        ),
    ),
    Mutant(
        "idle-ahead",
        "An idle partition is ahead of the commit index (BarrierSound).",
        ("BarrierSound", "ReadYourWrites"),
        (
            Edit(
                "dispatcher.barriers.watermarks:Watermarks.of",
                "_carried(mark, self._commit)",
                "_carried(mark, GlobalLogIndex(self._commit + 1))",
            ),
        ),
    ),
    Mutant(
        "budget-kept",
        "A request that is lost with the leadership keeps its budget (I10).",
        ("I10",),
        (Edit("dispatcher.pipeline.pending:Pending.lost", "request.ticket.release(part.partition_id)", "pass"),),
    ),
    Mutant(
        "share-kept",
        "A principal's share of the node is not given back with the budget (I10).",
        ("I10",),
        (
            Edit(
                "dispatcher.admission.admission:Admission.give_back",
                "share.take(-taken.operations, -taken.nbytes, -1)",
                "share.take(-taken.operations, -taken.nbytes, -1 if key[1] is not None else 0)",
            ),
        ),
    ),
    Mutant(
        "waits-on",
        "What waits for admission goes on waiting at a node that leads no more (I10).",
        ("I10",),
        (
            Edit("dispatcher.pipeline.pipeline:Pipeline.lost_leadership", "self.submitting.lost_leadership()", "pass"),
            Edit(
                "dispatcher.admission.waiting:WaitingRoom.expire",
                "self._ends[0][0] <= now",
                "self._ends[0][0] <= now - 60",
            ),
        ),
        needs="admission_wait_s",
    ),
    Mutant(
        "budget-of-the-late",
        "What has been taken for a request whose time is over is not given back (I10).",
        ("I10",),
        (
            Edit(
                "dispatcher.admission.waiting:WaitingRoom.expire",
                "if waiting.over:",
                "self._admission.try_admit(waiting.parts, now, waiting.principal)\n        if waiting.over:",
            ),
        ),
        needs="admission_wait_s",
    ),
    Mutant(
        "kept-for-nobody",
        "What is kept back for a large request that waits is kept when it has gone (I10).",
        ("I10",),
        (
            Edit(
                "dispatcher.admission.waiting:WaitingRoom._keep_no_more",
                "self._admission.keep_no_more(partition_id, waiting.number)",
                "pass",
            ),
        ),
        needs="chunks",
    ),
    Mutant(
        "shown-before-recovered",
        "A restarted node shows its watermarks at once (I7).",
        ("I7", "BarrierSound", "ReadYourWrites"),
        (Edit("dispatcher.pipeline.backend:Backend.recovered", "self.recovery.of(partitions)", "True"),),
    ),
    Mutant(
        "at-least-not-awaited",
        "A read at an index is answered with whatever is there (ReadYourWrites).",
        ("ReadYourWrites", "TokenKept"),
        (
            Edit(
                "dispatcher.reading.reads:make_fresh",
                "await backend.wait_applied(partition_id, target, deadline, asker=asker)",
                "return",
            ),
        ),
    ),
    Mutant(
        "view-not-awaited",
        "A view is taken of whatever a node has, as if nothing newer could be elsewhere (ViewFresh).",
        ("ViewFresh", "TokenKept"),
        (
            Edit(
                "dispatcher.reading.views:Views.scan",
                "await reads.make_fresh(self._backend, header, partitions[0], deadline, asker=asker)",
                "pass",
            ),
        ),
        needs="reads_log",
    ),
    Mutant(
        "view-of-later",
        "A view is said to be of later than it is (ViewAtomic).",
        ("ViewAtomic",),
        (
            Edit(
                "dispatcher.reading.views:Views._gather",
                "return global_index",
                "return int(backend.parent.global_index)",
            ),
        ),
        needs="reads_log",
    ),
    Mutant(
        "applied-before-stable",
        "Write-behind: a node applies what is durable here alone.",
        ("AppliedStable",),
        (
            Edit(
                PIPELINE + "_settle",
                "limit = store.durable_index if stable is None else min(store.durable_index, stable)",
                "limit = store.durable_index",
            ),
        ),
        needs="write_behind",
    ),
    Mutant(
        "stable-on-one",
        "Write-behind: a batch counts as stable once any node has synced it.",
        ("AppliedStable",),
        (Edit("dispatcher.barriers.stability:Stability._count", "held[self._position]", "held[0]"),),
        needs="write_behind",
    ),
    Mutant(
        "quorum-of-one",
        "A barrier over a majority is answered once any node is there (BarrierSound).",
        ("BarrierSound",),
        (
            Edit(
                "dispatcher.barriers.frontiers:Frontiers.frontier",
                "held[len(nodes) // 2 if scope is Scope.QUORUM else -1]",
                "held[0]",
            ),
        ),
        needs="waits",
    ),
    Mutant(
        "durable-once-ordered",
        "Write-behind: a barrier until all is durable is answered once it is ordered (BarrierSound).",
        ("BarrierSound",),
        (
            Edit(
                "dispatcher.barriers.barriers:Barriers.frontier",
                "self._commit if partition_id in self._whole else 0",
                "self._commit",
            ),
        ),
        needs="write_behind",
    ),
    Mutant(
        "mode-any",
        "A barrier over several partitions is answered once one of them is there (BarrierSound).",
        ("BarrierSound",),
        (Edit("dispatcher.sessions.waits:_need", "return -1", "return 1"),),
    ),
    Mutant(
        "any-is-all",
        "A barrier over some of several partitions waits for all of them (BarrierLive).",
        ("BarrierLive",),
        (
            Edit("dispatcher.sessions.waits:_need", "return 1", "return -1"),
            Edit("dispatcher.sessions.waits:_need", "return mode", "return -1"),
        ),
        needs="waits",
    ),
    Mutant(
        "tail-ends-early",
        "A tail ends in front of what came last (ReadsAll).",
        ("ReadsAll",),
        (
            Edit(
                "dispatcher.reading.tail:Tail._move",
                "if self._next > end:",
                "if self._next > end or (not self._wanted.follow and self._next > end - 2):",
            ),
        ),
    ),
    Mutant(
        "scan-ends-early",
        "A scan of the logs ends in front of what is safe to give (ReadsAll).",
        ("ReadsAll",),
        (
            Edit(
                "dispatcher.reading.log_scan:LogScan._go_on",
                "self._through = self._through or horizon",
                "self._through = self._through or max(1, horizon - 3)",
            ),
        ),
    ),
    Mutant(
        "tail-not-woken",
        "Who follows a log is given what there is when he comes, and nothing that comes later (FollowsAll).",
        ("FollowsAll",),
        (
            Edit(
                "dispatcher.reading.tail:Tail.__init__",
                "self._unsubscribe = subscribe(partition_id, self.move)",
                "self._unsubscribe = subscribe(partition_id, lambda error=None: None)",
            ),
        ),
        needs="follows",
    ),
    Mutant(
        "scan-before-its-start",
        "A scan that goes on at a node which is behind begins where that node is (FollowsAll).",
        ("GlobalOrder", "FollowsAll"),
        (
            Edit(
                "dispatcher.reading.log_scan:LogScan._is_early",
                "return last > int(self._backend.global_commit_index())",
                "return False",
            ),
        ),
        needs="follows",
    ),
    Mutant(
        "watch-silent",
        "A stream of watermarks says how things are, and never again (FollowsAll).",
        ("FollowsAll",),
        (
            Edit(
                "dispatcher.sessions.watching:Watch._tell",
                "if not news and not gone and minimum == self._minimum:",
                "if self._sent:",
            ),
        ),
        needs="follows",
    ),
    Mutant(
        "scan-not-awaited",
        "A scan of a state at an index gives whatever is there (TokenKept).",
        ("TokenKept",),
        (
            Edit(
                "dispatcher.reading.scans:Scans.scan",
                "await reads.make_fresh(backend, header, partition_id, deadline, asker=asker)",
                "pass",
            ),
        ),
        needs="hands_on",
    ),
    Mutant(
        "token-or-age",
        "A read at a token that may also be of some age is only that (TokenKept).",
        ("TokenKept",),
        (
            Edit(
                "dispatcher.reading.reads:make_fresh",
                'target = max(target, GlobalLogIndex(field_of(header, "at_least", int, 0)))',
                "pass",
            ),
        ),
        needs="hands_on",
    ),
    Mutant(
        "session-of-reads",
        "What a client was told of by receipts is not in its session (TokenKept).",
        ("TokenKept",),
        (Edit("logboom.client.lanes:Lane._share", "self._carrier.seen(whole.global_index)", "pass"),),
        needs="hands_on",
    ),
    Mutant(
        "old-enough",
        "A read of bounded staleness is answered with any index that was ever confirmed (BoundedStaleness).",
        ("BoundedStaleness", "FreshEnough"),
        (Edit("dispatcher.pipeline.freshness:Freshness.recent", "or self._known[0] < since", ""),),
        needs="waits",
    ),
    Mutant(
        "as-new-as-its-answer",
        "An index counts as new as the answer that it came with, not as the question (BoundedStaleness).",
        ("FreshEnough", "BoundedStaleness"),
        (
            Edit(
                "dispatcher.pipeline.freshness:Freshness._ask",
                "self._known = self._began, await self._index()",
                "index = await self._index()\n        self._known = self._backend.clock.monotonic(), index",
            ),
            Edit(
                "dispatcher.pipeline.freshness:Freshness.on_frame",
                "self._known = asked.began, GlobalLogIndex(index)",
                "self._known = self._backend.clock.monotonic(), GlobalLogIndex(index)",
            ),
        ),
    ),
)
