"""What may be waited for. Sans-io."""

from __future__ import annotations

from dispatcher.barriers.goals import Want, unknown
from dispatcher.barriers.watermarks import Watermarks
from logboom.errors import BarrierFuture, InvalidRequest
from logboom.settings import BarrierSettings
from logboom.types import GlobalLogIndex


def check(want: Want, watermarks: Watermarks) -> None:
    """Raises NoSuchPartition, or InvalidRequest for what nobody can reach."""
    for partition_id in want.partitions:
        if not watermarks.has(partition_id):
            raise unknown(partition_id, len(watermarks))
    if len(set(want.partitions)) != len(want.partitions):
        raise InvalidRequest("a partition appears twice in one barrier")
    if want.needed > len(want.targets):
        raise InvalidRequest(f"{want.needed} of {len(want.targets)} partitions cannot be reached")


def check_limits(want: Want, limits: BarrierSettings, commit: GlobalLogIndex, *, seconds: float) -> None:
    """What a client may wait for, and for how long. Raises BarrierFuture or InvalidRequest."""
    if want.target > commit + limits.ahead_max:
        raise BarrierFuture(
            f"barrier at {want.target}: the commit index is {commit}, at most {limits.ahead_max} ahead is allowed",
            target=want.target,
            commit_index=commit,
            limit=limits.ahead_max,
        )
    if seconds > limits.wait_ms_max / 1000 + 1:
        raise InvalidRequest(f"a barrier waits at most {limits.wait_ms_max} ms")
