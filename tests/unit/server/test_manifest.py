"""What may change under data that is there, and what may not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from logboom.errors import ConfigError, CorruptData
from logboom.settings import ClusterSettings, Member, PartitionSettings
from logboom.types import DurabilityMode, GlobalLogIndex, NodeId, PartitionId, PartitionLogIndex
from raftlog.entries.voids import Void
from server.directory.manifest import Manifest, PartitionKinds, decode, encode, sealed, unsealed, unsealed_id

AHEAD, BEHIND = DurabilityMode.WRITE_AHEAD, DurabilityMode.WRITE_BEHIND
MEMBERS = tuple(Member(id=f"n{k}", peer_address=f"n{k}:1", client_address=f"n{k}:2") for k in (3, 1, 2))
KV, LOG = PartitionSettings(), PartitionSettings(state_machine="log")


def manifest(partitions: int = 4, **overrides: PartitionSettings) -> Manifest:
    """``p1=...`` is the override of partition 1."""
    cluster = ClusterSettings(
        id="c1",
        members=MEMBERS,
        partitions=partitions,
        overrides={name.removeprefix("p"): chosen for name, chosen in overrides.items()},
    )
    return Manifest.of(NodeId("n1"), cluster)


def test_it_names_members_in_order_and_partitions_in_runs() -> None:
    found = manifest(6, p2=LOG, p3=LOG)
    assert found.members == ("n1", "n2", "n3")
    assert found.partitions == (
        PartitionKinds(2, "kv", AHEAD),
        PartitionKinds(2, "log", AHEAD),
        PartitionKinds(2, "kv", AHEAD),
    )


def test_it_is_read_as_it_was_written() -> None:
    found = manifest(10_000, p17=PartitionSettings(state_machine="log", mode=BEHIND))
    raw = encode(found)
    assert decode(raw, path="here") == found
    assert len(raw) < 1000


def test_voids_make_it_a_newer_format_and_come_back() -> None:
    void = Void(
        PartitionId(1), PartitionLogIndex(5), PartitionLogIndex(6), b"d" * 16, GlobalLogIndex(9), 7, applied=True
    )
    plain, found = manifest(), manifest().with_voids([void])
    assert (b'"format":2' in encode(plain), b'"voids"' in encode(plain)) == (True, False)
    raw = encode(found)
    assert b'"format":3' in raw
    assert decode(raw, path="here") == found
    assert found.voids[0].digest == (b"d" * 16).hex()
    fields = msgspec.json.decode(encode(plain), type=dict[str, Any])
    del fields["checksum"]
    with pytest.raises(CorruptData, match="format 3"):
        decode(sealed({**fields, "format": 3}), path="here")


@pytest.mark.parametrize("lineage", [None, "ab" * 16])
def test_another_history_makes_it_a_newer_format_and_comes_back(lineage: str | None) -> None:
    void = Void(
        PartitionId(1), PartitionLogIndex(5), PartitionLogIndex(6), b"d" * 16, GlobalLogIndex(9), 7, applied=True
    )
    found = msgspec.structs.replace(manifest(), lineage=lineage)
    for each in (found, found.with_voids([void])):
        raw = encode(each)
        assert b'"format":4' in raw
        assert decode(raw, path="here") == each
    joins = Manifest.of(NodeId("n1"), ClusterSettings(id="c1", members=MEMBERS), joins=True)
    assert (joins.lineage, manifest().lineage) == (None, "")


@pytest.mark.parametrize(
    "change",
    [
        {"lineage": ""},
        {"lineage": "ab"},
        {"lineage": "AB" * 16},
        {"lineage": "00" * 16},
        {"lineage": 7},
        {"lineage": "ab" * 16, "format": 2},
        {"lineage": "ab" * 16, "format": 3},
        {"lineage": None, "format": 2},
        {"format": 4},
    ],
)
def test_a_lineage_that_cannot_be(change: dict[str, Any]) -> None:
    fields = msgspec.json.decode(encode(msgspec.structs.replace(manifest(), lineage=None)), type=dict[str, Any])
    del fields["checksum"], fields["lineage"]
    with pytest.raises(CorruptData, match="no manifest"):
        decode(sealed(fields | change), path="here")


@pytest.mark.parametrize("count", [-1, 0, 100_001, 1 << 63])
def test_a_number_of_partitions_that_cannot_be(count: int) -> None:
    raw = encode(Manifest(node="n1", cluster="c1", members=("n1",), partitions=(PartitionKinds(count, "kv", AHEAD),)))
    with pytest.raises(CorruptData, match="here is no manifest"):
        decode(raw, path="here")


class TestPartitions:
    def refused(self, had: Manifest, wanted: Manifest, used: set[int]) -> str:
        with pytest.raises(ConfigError) as error:
            had.check_partitions(wanted, used)
        return str(error.value.path)

    def test_more(self) -> None:
        manifest(4).check_partitions(manifest(6, p5=LOG), {0, 1, 2, 3})

    def test_fewer_while_those_are_empty(self) -> None:
        manifest(4).check_partitions(manifest(2), {0, 1})
        manifest(4).check_partitions(manifest(2), set())

    def test_fewer_where_one_has_data(self) -> None:
        assert self.refused(manifest(4), manifest(2), {0, 3}) == "cluster.partitions"

    def test_the_number_to_set_is_named(self) -> None:
        with pytest.raises(ConfigError, match="set it to 4 or more"):
            manifest(4).check_partitions(manifest(3), {3})

    @pytest.mark.parametrize(("before", "after"), [(KV, LOG), (LOG, KV)])
    def test_another_state_machine(self, before: PartitionSettings, after: PartitionSettings) -> None:
        had, wanted = manifest(p1=before), manifest(p1=after)
        assert self.refused(had, wanted, {0, 1}) == 'cluster.overrides."1".state_machine'
        had.check_partitions(wanted, {0, 2, 3})

    def test_written_behind_stays_so(self) -> None:
        behind = PartitionSettings(mode=BEHIND)
        assert self.refused(manifest(p1=behind), manifest(), {1}) == 'cluster.overrides."1".mode'
        manifest().check_partitions(manifest(p1=behind), {1})

    def test_data_of_a_partition_that_it_never_named(self) -> None:
        with pytest.raises(CorruptData):
            manifest(2).check_partitions(manifest(4), {3})


class TestSmallSealedFiles:
    def test_what_is_sealed_is_read(self) -> None:
        assert unsealed(sealed({"own": "ab"}), path="f", only={"own"}) == {"own": "ab"}
        assert unsealed_id("ab" * 16, 16, path="f") == b"\xab" * 16

    def test_more_than_a_reader_knows_is_refused(self) -> None:
        with pytest.raises(CorruptData, match="f says more than it should: else"):
            unsealed(sealed({"own": "ab", "else": 1}), path="f", only={"own"})

    @pytest.mark.parametrize("said", ["AB" * 16, "ab" * 15, " " + "ab" * 16, "ab " * 16, 7, None])
    def test_an_id_is_written_in_one_way(self, said: Any) -> None:
        with pytest.raises(CorruptData, match="f has an id that is none"):
            unsealed_id(said, 16, path="f")
