"""Bugs of the write flow and of what clients are told: dedupe, barriers, watermarks, budgets."""

from __future__ import annotations

from typing import Final

from chaos.sim.mutants.edit import Edit, Mutant

PIPELINE: Final = "dispatcher.pipeline:Pipeline."
DEDUPE: Final = "partitions.dedupe:Dedupe."

MUTANTS: Final = (
    Mutant(
        "no-dedupe",
        "Whatever is sent again is applied again (I5).",
        ("I8", "I5", "ReadYourWrites"),
        (
            Edit(DEDUPE + "decide", "if header.producer == NO_PRODUCER:", "if True:"),
            Edit(DEDUPE + "lookup", "known = self._producers.get(producer)", "known = None"),
        ),
    ),
    Mutant(
        "dedupe-by-attempt",
        "Every attempt of a request has sequence numbers of its own (I5).",
        ("I8", "ReadYourWrites"),
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
                "dispatcher.pending:Pending.lost",
                'UnknownOutcome("leadership was lost before the request was committed; send it again")',
                'DeadlineExceeded("leadership was lost before the request was committed", outcome="not_applied")',
            ),
        ),
    ),
    Mutant(
        "barrier-early",
        "A barrier is answered one global index too early (BarrierSound).",
        ("BarrierSound",),
        (
            Edit(
                "dispatcher.barriers:Barriers.add",
                "self.frontier(p, level) < target",
                "self.frontier(p, level) < target - 1",
            ),
            Edit(
                "dispatcher.barriers:Barriers._wake",
                "reached = self.frontier(partition_id, level)",
                "reached = self.frontier(partition_id, level) + 1",
            ),
        ),
    ),
    Mutant(
        "idle-ahead",
        "An idle partition is ahead of the commit index (BarrierSound).",
        ("BarrierSound", "ReadYourWrites"),
        (
            Edit(
                "dispatcher.watermarks:Watermarks.of",
                "applied_global_index=self._commit)",
                "applied_global_index=GlobalLogIndex(self._commit + 1))",
            ),
        ),
    ),
    Mutant(
        "budget-kept",
        "A request that is lost with the leadership keeps its budget (I10).",
        ("I10",),
        (Edit("dispatcher.pending:Pending.lost", "request.ticket.release(part.partition_id)", "pass"),),
    ),
    Mutant(
        "shown-before-recovered",
        "A restarted node shows its watermarks at once (I7).",
        ("I7", "BarrierSound", "ReadYourWrites"),
        (Edit("dispatcher.backend:Backend.recovered", "return ", "return True or "),),
    ),
    Mutant(
        "at-least-not-awaited",
        "A read at an index is answered with whatever is there (ReadYourWrites).",
        ("ReadYourWrites",),
        (Edit("dispatcher.reads:make_fresh", "await backend.wait_applied(partition_id, target, deadline)", "return"),),
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
    ),
    Mutant(
        "stable-on-one",
        "Write-behind: a batch counts as stable once any node has synced it.",
        ("AppliedStable",),
        (Edit("dispatcher.stability:Stability._count", "held[self._position]", "held[0]"),),
    ),
)
