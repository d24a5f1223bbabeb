"""What nodes compare of their cluster settings: the same as in the release before, as long as nothing new is set."""

from __future__ import annotations

import hashlib

import pytest

from logboom.settings import ClusterSettings, Member, PartitionSettings
from logboom.types import Ack
from server.directory.agreement import settings_digest

FIRST_RELEASE = (
    b'{"id":"logboom","members":[],"partitions":8,"state_machine":"kv","mode":"write_ahead","overrides":'
    b'{"10":{"state_machine":"kv","mode":"write_ahead"},"3":{"state_machine":"log","mode":"write_ahead"}}}'
)
OVERRIDES = {"3": PartitionSettings(state_machine="log"), "10": PartitionSettings()}


def test_nodes_of_both_releases_agree() -> None:
    member = Member(id="n1", peer_address="a:1", client_address="a:2")
    digest = settings_digest(ClusterSettings(members=(member,), overrides=OVERRIDES))
    assert digest == hashlib.blake2b(FIRST_RELEASE, digest_size=16).digest()


@pytest.mark.parametrize(
    "other",
    [
        ClusterSettings(overrides=OVERRIDES, ack=Ack.DURABLE),
        ClusterSettings(overrides=OVERRIDES, linearizable=True),
        ClusterSettings(overrides={**OVERRIDES, "3": PartitionSettings(state_machine="log", ack=Ack.COMMITTED)}),
        ClusterSettings(overrides={**OVERRIDES, "10": PartitionSettings(linearizable=True)}),
    ],
)
def test_what_is_set_has_to_be_set_everywhere(other: ClusterSettings) -> None:
    assert settings_digest(other) != settings_digest(ClusterSettings(overrides=OVERRIDES))
