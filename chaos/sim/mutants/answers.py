"""Bugs of what answers tell, and of what is refused to whom."""

from __future__ import annotations

from typing import Final

from chaos.sim.mutants.edit import Edit, Mutant

MUTANTS: Final = (
    Mutant(
        "results-of-some",
        "A write that waits for less than that it is applied is told what was applied by then (ReceiptTrue).",
        ("ReceiptTrue",),
        (
            Edit(
                "dispatcher.pipeline.pending:Pending._reached",
                "is_told = request.wait is Level.APPLIED",
                "is_told = True",
            ),
        ),
    ),
    Mutant(
        "too-late-for-whoever",
        "What does not wait until it is applied is refused because it would be applied too late (RefusedInTime).",
        ("RefusedInTime",),
        (
            Edit(
                "dispatcher.admission.waiting:WaitingRoom._try",
                "LATE * self._admission.delay(waiting.parts, now) and waiting.applies()",
                "20 * self._admission.delay(waiting.parts, now)",
            ),
        ),
        needs="admission_wait_s",
    ),
    Mutant(
        "full-with-room",
        "Of the requests of each client some are said to be too many, where there is room for all.",
        ("RefusedRightly",),
        (
            Edit(
                "dispatcher.pipeline.submitting:Submitting._make_room",
                "full = self._proposals()",
                "full = self._proposals()\n"
                "    if request.parts[0].first_sequence % 4 == 3:\n"
                "        full = Refusal('proposals', None, 0, self._proposals_max)",
            ),
        ),
    ),
    Mutant(
        "frozen-for-nobody",
        "Of the requests of each client some are told that their partition is being destroyed.",
        ("RefusedRightly",),
        (
            Edit(
                "dispatcher.pipeline.submitting:Submitting._check_whole",
                "unclear = check_whole(request, pipeline.workers, pipeline.pending.ahead)",
                "unclear = check_whole(request, pipeline.workers, pipeline.pending.ahead)\n"
                "    if request.parts[0].first_sequence % 4 == 3:\n"
                "        raise PartitionFrozen('it goes', partition_id=request.parts[0].partition_id)",
            ),
        ),
    ),
    Mutant(
        "near-is-far",
        "A barrier for what is not ordered yet is refused, as if it were too far ahead.",
        ("RefusedRightly",),
        (
            Edit(
                "dispatcher.barriers.limits:check_limits",
                "if want.target > commit + limits.ahead_max:",
                "if want.target > commit:",
            ),
        ),
    ),
)
