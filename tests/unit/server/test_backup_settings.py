"""A backup has what was set of partitions, or says that it has not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from logboom.errors import InvalidRequest, WrongNode
from logboom.types import PARTITION_SETTINGS, Ack, GlobalLogIndex, PartitionId
from raftlog.entries.chosen import NOTHING, Chosen
from snapshots.states import StatesWriter
from tests.unit.dispatcher.installing_world import LOG, G, Source, Wire
from tests.unit.server.backup_nodes import Nodes, Row, taken
from tests.unit.snapshots.states_world import Dump, entries


class Choosy(Source):
    """Its next sets say that the partition was set."""

    chosen: Mapping[PartitionId, Chosen] = MappingProxyType({})

    def written_by(self, writer: StatesWriter) -> StatesWriter:
        if self.chosen:
            self.parent.lifecycle = self.parent.lifecycle.fixed(LOG + 2)
            self.parent.agreed, self.parent.chosen = frozenset({PARTITION_SETTINGS}), self.chosen
        return super().written_by(writer)


DURABLE = Chosen(Ack.DURABLE)
ROW: Row = (LOG, "durable", None)
OTHER: Row = (LOG, None, True)


@pytest.mark.parametrize(
    ("before", "has", "now", "refused"),
    [
        ([], NOTHING, [], False),
        ([ROW], NOTHING, [ROW], True),
        ([ROW], DURABLE, [ROW], False),
        ([OTHER], DURABLE, [OTHER], True),
        ([(LOG, "durable", True)], DURABLE, [(LOG, "durable", True)], True),
        # It was set while the backup was under way.
        ([], NOTHING, [ROW], False),
        ([], DURABLE, [ROW], False),
        ([OTHER], DURABLE, [ROW], False),
        ([OTHER], NOTHING, [ROW], True),
        # So was another one, which was destroyed as well.
        ([(LOG + 2, "durable", None)], NOTHING, [], False),
    ],
)
def test_a_set_that_does_not_know_what_partitions_were_set_to_is_refused(
    tmp_path: Path, before: list[Row], has: Chosen, now: list[Row], refused: bool
) -> None:
    """Found by review: where nothing was written since, a restore went by what had counted before."""
    source = Choosy("n2", Wire(), big=10)
    source.chosen = {PartitionId(LOG): has} if has != NOTHING else {}
    source.set_at(GlobalLogIndex(G + 1))
    nodes = Nodes(n1=source, n2=source, n3=source)
    nodes.at, nodes.chosen = GlobalLogIndex(G + 1), [before] * 4 + [now] * 9
    if refused:
        with pytest.raises(InvalidRequest, match=rf"were set \({LOG}\).* write to any partition"):
            taken(nodes, tmp_path / "kept")
        assert not list((tmp_path / "kept").glob("*.states*"))
    else:
        taken(nodes, tmp_path / "kept")


def test_nor_does_one_of_an_earlier_backup_stand_for_it(tmp_path: Path) -> None:
    """Of two cuts with no write in between, one node has taken the first and another one the second."""
    early, late = Choosy("n1", Wire(), big=10), Choosy("n2", Wire(), big=10)
    late.chosen = {PartitionId(LOG): DURABLE}
    for source in (early, late):
        source.set_at(GlobalLogIndex(G + 1))
    nodes, kept = Nodes(n1=early, n2=late, n3=late), tmp_path / "kept"
    nodes.at = GlobalLogIndex(G + 1)
    taken(nodes, kept, node="n1")
    nodes.chosen = [[ROW]] * 99
    with pytest.raises(InvalidRequest, match="write to any partition"):
        taken(nodes, kept, node="n2")
    taken(nodes, tmp_path / "other", node="n2")


class Growing(Source):
    """It may have one partition more."""

    more = False

    def written_by(self, writer: StatesWriter) -> StatesWriter:
        super().written_by(writer)
        if self.more:
            writer.add(PartitionId(LOG + 2), "kv", Dump(entries(3), 1))
        return writer


@pytest.mark.parametrize("first_has_more", [False, True])
def test_of_an_earlier_backup_with_other_partitions_it_is_said_what_it_is(tmp_path: Path, first_has_more: bool) -> None:
    """Found by review: "of another history", which it is not, and what to do nobody said."""
    early, late = Growing("n1", Wire(), big=10), Growing("n2", Wire(), big=10, raft_index=78)
    early.more, late.more = first_has_more, not first_has_more
    for source in (early, late):
        source.set_at(GlobalLogIndex(G + 1))
    nodes, kept = Nodes(n1=early, n2=late, n3=late), tmp_path / "kept"
    nodes.at = GlobalLogIndex(G + 1)
    nodes.partitions = [[LOG, LOG + 1, *[LOG + 2] * early.more]] * 99
    done, _ = taken(nodes, kept, node="n1")
    nodes.partitions = [[LOG, LOG + 1, *[LOG + 2] * late.more]] * 99
    with pytest.raises(InvalidRequest, match=rf"or destroyed \({LOG + 2}\).* write to any partition"):
        taken(nodes, kept, node="n2")
    late.set_at(GlobalLogIndex(G + 2))
    nodes.at = GlobalLogIndex(G + 2)
    assert taken(nodes, kept, node="n2")[0].sets == done.sets + 1


@pytest.mark.parametrize("more", [False, True])
def test_where_a_state_is_another_one_it_is_another_history(tmp_path: Path, more: bool) -> None:
    early, late = Growing("n1", Wire(), big=10), Growing("n2", Wire(), big=11)
    late.more = more
    for source in (early, late):
        source.set_at(GlobalLogIndex(G + 1))
    nodes, kept = Nodes(n1=early, n2=late, n3=late), tmp_path / "kept"
    nodes.at = GlobalLogIndex(G + 1)
    taken(nodes, kept, node="n1")
    nodes.partitions = [[LOG, LOG + 1, *[LOG + 2] * more]] * 99
    with pytest.raises(WrongNode, match="another history"):
        taken(nodes, kept, node="n2")
