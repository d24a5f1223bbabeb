"""Bugs of what operators ask for, are told, and have bounded."""

from __future__ import annotations

from typing import Final

from chaos.sim.mutants.edit import Edit, Mutant

FRESHNESS: Final = "dispatcher.pipeline.freshness:Freshness."

MUTANTS: Final = (
    Mutant(
        "snapshot-under-way-will-do",
        "Who asks for a snapshot is given the one under way, which was cut before (SnapshotFresh).",
        ("SnapshotFresh",),
        (
            Edit(
                "dispatcher.upkeep.snapshotting:Snapshotting.create",
                "self._waiting.append(done)",
                "(self._waiting if self._gathering is None else self._awaiting).append(done)",
            ),
        ),
        needs="asks",
    ),
    Mutant(
        "time-of-any-node",
        "Which index a time is of, any node says that is asked, as far as it knows (TimeCovers).",
        ("TimeCovers",),
        (
            Edit(FRESHNESS + "index_at", "if not backend.raft.admits:", "if False:"),
            Edit(FRESHNESS + "index_at", "await backend.read_index(deadline)", "backend.global_commit_index()"),
        ),
        needs="asks",
    ),
    Mutant(
        "other-sets-compared",
        "Whoever is told of a set compares it with any later one: states are said to differ that do not (DifferTrue).",
        ("DifferTrue",),
        (
            Edit(
                "dispatcher.upkeep.comparing:Comparing._compare",
                "meta.global_index == told.global_index",
                "meta.global_index >= told.global_index",
            ),
        ),
    ),
    Mutant(
        "states-left-open",
        "A node that is stopped in order does not close its states (StopsInOrder).",
        ("StopsInOrder",),
        (Edit("server.node:Node.close", "self.rooms.close()", "pass"),),
        needs="orderly",
    ),
    Mutant(
        "hole-is-void",
        "What nobody has counts as void in the log as soon as it is committed: no operator was asked (VoidTrue).",
        ("VoidTrue",),
        (Edit("partitions.log.committed:Committed.append", "self.lose(ref.last_index, ref.digest)", "pass"),),
        needs="blackout",
    ),
    Mutant(
        "sealed-for-good",
        "A batch that might have been declared void, and turned up, stays refused by those who lack it (SealEnds).",
        ("SealEnds",),
        (Edit("raftlog.repair.seals:Seals.put", "self._carry_out(digest, on)", "on and self._carry_out(digest, on)"),),
        needs="blackout",
    ),
    Mutant(
        "void-where-it-leads",
        "What is declared void is void at the leader alone (decisions/0018).",
        ("Liveness",),
        (
            Edit(
                "dispatcher.pipeline.voiding:Voiding._carry_out",
                "if store is None:",
                "if store is None or not pipeline.raft.admits:",
            ),
        ),
        needs="blackout",
    ),
    Mutant(
        "idle-time-saved-up",
        "Who has not written for a while may write so much more at once (RateKept).",
        ("RateKept",),
        (
            Edit(
                "dispatcher.admission.rates:Rates.take",
                "max(now, self._paid_at.get(key, now))",
                "self._paid_at.get(key, now)",
            ),
        ),
        needs="rated",
    ),
    Mutant(
        "reading-paid-before",
        "Who has read nothing yet has the time since the clock began to his credit (RateKept).",
        ("RateKept",),
        (
            Edit(
                "dispatcher.reading.read_rates:Pace.take",
                "max(self._paid_at, now) + seconds",
                "self._paid_at + seconds",
            ),
        ),
        needs="paced",
    ),
    Mutant(
        "share-of-all",
        "Who has something of a budget may have all that is left of it (ShareKept).",
        ("ShareKept",),
        (
            Edit(
                "dispatcher.admission.admission:Admission._own_share",
                "if not self._factor or (use is None and not (principal and gate.batches)):",
                "if True:",
            ),
        ),
        needs="shares",
    ),
    Mutant(
        "hot-partition",
        "One partition may have all of the node's budget (ShareKept).",
        ("ShareKept",),
        (
            Edit(
                "dispatcher.admission.admission:Admission._partition_share",
                "if not self._factor or not gate.batches:",
                "if True:",
            ),
        ),
        needs="shares",
    ),
)
