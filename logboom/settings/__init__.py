"""Every setting, typed, frozen, with its default and unit. Loading and checking: ``logboom.config``.

ClusterSettings must agree on all nodes (checked when nodes connect); the rest is each node's own.
Defaults suit a laptop.
"""

from __future__ import annotations

from logboom.settings.bounds import AdmissionSettings, BarrierSettings, LagSettings, ReadSettings
from logboom.settings.cluster import ClusterSettings, Member, NodeSettings, PartitionSettings
from logboom.settings.doors import AccessSettings, HttpSettings, NetSettings, TlsSettings, TraceSettings
from logboom.settings.section import Section
from logboom.settings.storing import ApplySettings, LogSettings, RaftSettings, ScrubSettings, SnapshotSettings

__all__ = [
    "AccessSettings",
    "AdmissionSettings",
    "ApplySettings",
    "BarrierSettings",
    "ClusterSettings",
    "HttpSettings",
    "LagSettings",
    "LogSettings",
    "Member",
    "NetSettings",
    "NodeSettings",
    "PartitionSettings",
    "RaftSettings",
    "ReadSettings",
    "ScrubSettings",
    "Settings",
    "SnapshotSettings",
    "TlsSettings",
    "TraceSettings",
]


class Settings(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of a node."""

    cluster: ClusterSettings = ClusterSettings()
    node: NodeSettings = NodeSettings()
    raft: RaftSettings = RaftSettings()
    log: LogSettings = LogSettings()
    reads: ReadSettings = ReadSettings()
    apply: ApplySettings = ApplySettings()
    snapshot: SnapshotSettings = SnapshotSettings()
    scrub: ScrubSettings = ScrubSettings()
    admission: AdmissionSettings = AdmissionSettings()
    lag: LagSettings = LagSettings()
    barrier: BarrierSettings = BarrierSettings()
    net: NetSettings = NetSettings()
    http: HttpSettings = HttpSettings()
    trace: TraceSettings = TraceSettings()
    tls: TlsSettings = TlsSettings()
    access: AccessSettings = AccessSettings()
