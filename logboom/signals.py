"""Signals of one's own for admission: what a node looks at before it takes more.

A signal is a class without arguments, registered under the entry point group ``logboom.admission_signals`` and named
in ``admission.signals``. Its ``read`` is called every ``admission.signal_ms``, off the event loop, one call at a time:
it may block for a moment. What it gives counts until it is asked again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, Protocol

from logboom.errors import LogboomError

GROUP: Final = "logboom.admission_signals"

Reading = float | LogboomError
"""0: all is well; 1: nothing is admitted, with Overloaded; in between so much of all budgets is withheld. Or an
error: nothing is admitted, and this is the answer."""


class PartitionView(NamedTuple):
    """One partition of a node, as it was a moment ago."""

    partition_id: int
    state: str
    """`running`, `retrying`, `paused`, `damaged`."""
    operations: int
    nbytes: int
    batches: int
    """Admitted by this node and not yet applied."""
    age_s: float
    """Age of the oldest of these."""
    lag_records: int
    """Committed and not applied here, whoever admitted them."""
    lag_global: int
    """How far it is behind in ``global_log_index``; 0 when there is nothing to apply."""


class NodeView(NamedTuple):
    """A node, as it was a moment ago."""

    node: str
    data_dir: str
    leads: bool
    operations: int
    nbytes: int
    batches: int
    age_s: float
    waiting: int
    """Requests that wait for admission."""
    partitions: Mapping[int, PartitionView]
    """All; of a node with very many the next thousand, each time."""


class Signal(Protocol):
    """``scope`` `node`: ``read`` gives one reading; `partition`: one per partition, 0 for those left out.

    A ``read`` that raises is logged and counted, and says 0; or 1, if the class has a true ``fails_closed``.
    One that does not come back leaves everything as it was said last.
    """

    @property
    def scope(self) -> Literal["node", "partition"]:
        """Of what it speaks."""
        ...

    def read(self, view: NodeView) -> Reading | Mapping[int, Reading]:
        """What is to be said now."""
        ...
