"""What clients saw, for those who look at it; and whether they were refused for a reason that there is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from chaos.checkers.watermarks import Sample
from chaos.history import History, Operation
from chaos.sim.beginnings import Beginning
from chaos.sim.drawn_faults import DAMAGE
from chaos.sim.parameters import Parameters
from chaos.sim.readers import Places
from chaos.sim.reasons import NEVER, may_be_frozen, may_be_full
from chaos.sim.waiting import Told
from chaos.sim.whole import left_out
from logboom.errors import IndexCompacted, LogboomError, Voided
from logboom.types import KIB, MIB

COMMANDS_MAX: Final = 25
REQUEST_BYTES_MAX: Final = 16 * KIB
"""No request of a simulated client is larger."""
ANSWER_BYTES: Final = MIB
"""Nodes that have less for one, here and nowhere else (``config`` refuses them), have to say so."""
NOWHERE: Final = 1 << 62


@dataclass
class Seen:
    """What clients saw, for the checkers."""

    history: History
    addresses: dict[str, str]
    """Client addresses of those who are, or were a moment ago, members, and their ids."""
    heard: dict[tuple[str, int], Sample] = field(default_factory=dict)
    """By node and partition: the highest watermarks that anybody heard of."""
    sampled: int = 0
    together: list[list[Operation]] = field(default_factory=list)
    """Operations of one request each: all of them or none."""
    refusals: Counter[str] = field(default_factory=Counter)
    """By code, of this history."""
    problems: list[tuple[str, str]] = field(default_factory=list)
    """(invariant, story), found on the spot."""
    created: dict[int, str] = field(default_factory=dict)
    """Partitions that were created, as far as anybody was told, and their state machines."""
    created_at: Mapping[int, int] = field(default_factory=dict)
    """Those that were created, and what was the newest global index then, as the nodes know it."""
    gone: set[int] = field(default_factory=set)
    """Those that somebody was told are destroyed."""
    places: Places = field(default_factory=Places)
    """What was read of the logs."""
    kept: int = 0
    """How often the last partition was to be destroyed, and was not."""
    sets: int = 0
    """How often a partition was set."""
    told: Told = field(default_factory=Told)
    """Writes that were acknowledged last."""
    again: bool = False
    """In another history than the cluster's first: registers have other names, which nobody has written."""
    doomed: set[int] = field(default_factory=set)
    """Those that somebody has asked to be destroyed: what is in there may be gone."""
    _left_out: list[tuple[str, int, list[int]]] = field(default_factory=list)
    """Answers about all partitions up to a global index that were not about these, which may be right."""
    parameters: Parameters | None = None
    """Of the run; None: nothing is known of it."""
    rotten: Callable[[], bool] = lambda: False
    """Whether the files of any host may be damaged."""
    committed: Callable[[], int] = lambda: 0
    """The newest global index that any node has committed."""
    begins: Callable[[int], Beginning] = lambda _: Beginning(NOWHERE, NOWHERE)
    """How far the beginning of a partition's log has come, on any node."""
    voids: Collection[tuple[int, int]] = ()
    """Partition and last index of all that was declared void."""

    def second(self, addresses: dict[str, str], global_index: int) -> Seen:
        """Of another history, which begins with what the first one had up to there: all that this is true of, still."""
        second = Seen(self.history, addresses, again=True, together=self.together, refusals=self.refusals)
        places = self.places
        second.places.by_global = {at: row for at, row in places.by_global.items() if at <= global_index}
        second.places.told = [each for each in places.told if each.by <= global_index]
        for each in second.places.told:
            second.places.cursors[each.name] = max(second.places.cursors.get(each.name, 0), each.position)
        return second

    def stepped_over(self, who: str, gap: Voided, due: int) -> int:
        """Somebody was told of a gap in a log. What comes next; ``due``: what came next before, 0: he cannot tell."""
        partition, first, last = (int(gap.fields[name]) for name in ("partition_id", "first_index", "last_index"))
        story = (
            f"{who}, {partition} from {due or 'anywhere'} on, steps over {first} to {last} and goes on at {gap.next}"
        )
        if (partition, last) not in self.voids:
            self.problems.append(("VoidTold", f"{story}: nobody has declared that void"))
        elif gap.next != last + 1 or not first <= (due or first) <= last:
            self.problems.append(("VoidTold", story))
        return int(gap.next)

    def refused(self, what: str, error: LogboomError, *asked: int, merged: bool = False) -> None:
        """Somebody was told so. ``asked``: partitions of which records were read; ``merged``: in their global order."""
        self.refusals[error.code] += 1
        if not self._may_be(error, asked):
            self.problems.append(("RefusedRightly", f"{what} was told {error.code}: {error}"))
        elif isinstance(error, IndexCompacted) and asked:
            begin = max((self.begins(p).first_global if merged else self.begins(p).first, p) for p in asked)
            if int(error.fields.get("first", 0)) > begin[0]:
                story = f"{what} was told of {asked}: {error}; of {begin[1]} all that is behind {begin[0]} is there"
                self.problems.append(("RefusedRightly", story))

    def all_of(self, what: str, target: int, given: Collection[int]) -> None:
        """Somebody waited for all partitions to be at a global index; ``given``: those that he was told of."""
        lacking = left_out(target, given, begun=self.begun, created_at=self.created_at, doomed=self.doomed)
        if lacking:
            self._left_out.append((f"{what} is about {sorted(given)}", target, lacking))

    def last_word(self) -> list[tuple[str, str]]:
        """All problems, once the history is whole: what was ordered before an answer may be acknowledged after it."""
        for story, target, lacking in self._left_out:
            # One that is being opened, of which nothing is ordered up to there, may be left out.
            written = {each.partition for each in self.history.operations if 0 < each.global_index <= target}
            wrongly = [each for each in lacking if each in written or each in self.begun]
            if wrongly:
                self.problems.append(("BarrierAll", f"{story}, and not about {wrongly}"))
        self._left_out.clear()
        return self.problems

    @property
    def begun(self) -> list[int]:
        """Partitions that the cluster began with."""
        return [] if self.parameters is None else self.parameters.kv_partitions + self.parameters.log_partitions

    def _may_be(self, error: LogboomError, asked: Collection[int]) -> bool:
        partition, drawn = error.fields.get("partition_id"), self.parameters
        match error.code:
            case "invalid_request":
                return error.outcome != "not_applied"  # it was sent again, to those who had done it
            case code if code in NEVER:
                return False
            case "partition_destroyed":
                return partition in self.doomed
            case "no_such_partition":  # yet, on a node that is behind: cursors are in one that was created, too
                return partition in self.doomed or partition not in (None, *self.begun)
            case "lineage_mismatch":  # nodes of before come back
                return self.again
            case "record_too_large":
                return drawn is None or _takes_little(drawn)
            case "corrupt_data":
                forgot = bool(self.doomed) if partition is None else partition in self.doomed
                return self.rotten() or (drawn is not None and drawn.blackout is not None and forgot)
            case "partition_paused":
                return drawn is None or drawn.asks or "pause_partition" in drawn.kinds
            case "partition_lost":
                return drawn is None or drawn.blackout is not None or not DAMAGE.isdisjoint(drawn.kinds)
            case "index_compacted":
                return drawn is None or _removes(drawn) or not set(drawn.log_partitions).issuperset(asked)
            case "barrier_future":  # of a time: an operator asks a leader whose clock shows an earlier one
                return drawn is None or (drawn.asks and "timestamp_ms" in error.fields)
            case "voided":
                return bool(self.voids)
            case "partition_frozen":
                return drawn is None or partition in self.doomed or bool(self.kept) or may_be_frozen(drawn)
            case "overloaded":
                return drawn is None or may_be_full(drawn, error)
        return True


def _takes_little(drawn: Parameters) -> bool:
    """Requests of some commands may be more than there is room for, or their batch than is sent to whoever reads it."""
    admission = drawn.settings.admission
    few, short = (admission.node_ops, admission.partition_ops), (admission.node_bytes, admission.partition_bytes)
    narrow = drawn.settings.net.client_send_buffer_bytes < ANSWER_BYTES
    return narrow or min(few) < COMMANDS_MAX or min(short) < REQUEST_BYTES_MAX


def _removes(drawn: Parameters) -> bool:
    """What is in ``log`` partitions does not stay for ever."""
    snapshot = drawn.settings.snapshot
    return bool(snapshot.retain_log_ms or snapshot.retain_log_bytes)
