"""What all nodes of a cluster must agree on, in a form that is short enough to compare when they meet."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from logboom.errors import ConfigError
from logboom.settings import ClusterSettings, Member, PartitionSettings, Settings


def settings_digest(cluster: ClusterSettings) -> bytes:
    """What both ends of a link compare: all cluster settings but the members, in a canonical form.

    What the first release did not have is left out where nobody has set it: nodes of both may be in one cluster.
    """
    shared = msgspec.structs.asdict(msgspec.structs.replace(cluster, members=()))
    shared["overrides"] = {key: _older(msgspec.structs.asdict(kind)) for key, kind in sorted(cluster.overrides.items())}
    return hashlib.blake2b(msgspec.json.encode(_older(shared)), digest_size=16).digest()


def member_of(settings: Settings) -> Member:
    """The node that these settings are of, as the cluster's settings name it. Raises ConfigError."""
    for member in settings.cluster.members:
        if member.id == settings.node.id:
            return member
    known = ", ".join(m.id for m in settings.cluster.members) or "none"
    raise ConfigError(f"node.id {settings.node.id!r} is not a member; members: {known}", path="node.id")


def _older(fields: dict[str, Any]) -> dict[str, Any]:
    defaults = PartitionSettings()
    new = {"ack": defaults.ack, "linearizable": defaults.linearizable}
    return {name: value for name, value in fields.items() if name not in new or value != new[name]}
