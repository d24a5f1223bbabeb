"""The ports of local clusters, which their nodes come back to."""

from __future__ import annotations

import gc
import socket
from pathlib import Path

import pytest

from logboom import local_ports, testing
from logboom.errors import ConfigError


@pytest.fixture
def says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in the place of the system's."""
    path = tmp_path / "ip_local_port_range"
    monkeypatch.setattr(local_ports, "PORT_RANGE", path, raising=False)
    return path


def test_no_outgoing_connection_is_given_the_port_of_a_node_that_is_down(says: Path) -> None:
    says.write_text("32768\t60999\n")
    for _ in range(5):
        found = local_ports.free_ports(12)
        assert len(set(found)) == 12
        assert all(port < 32768 for port in found)


@pytest.mark.parametrize("said", ["1024 65000", "nonsense", "", None])
def test_where_the_system_leaves_none_any_free_one_will_do(says: Path, said: str | None) -> None:
    if said is not None:
        says.write_text(said)
    assert len(set(local_ports.free_ports(3))) == 3


def test_one_that_is_taken_is_passed_over(says: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        number = taken.getsockname()[1]
        monkeypatch.setattr(local_ports, "_lasting_ports", lambda: range(number, number + 1), raising=False)
        assert local_ports.free_ports(1) != [number]


def test_ports_of_a_cluster_are_its_own_before_its_nodes_listen_and_while_they_are_down(tmp_path: Path) -> None:
    """Two clusters that were begun at the same time chose one port, and a node of one of them did not start."""
    cluster = testing.LocalCluster(nodes=2, directory=tmp_path, http=True)
    again = testing.LocalCluster(nodes=2, directory=tmp_path)  # as after `logboom local` has ended
    addresses = [*cluster.addresses.values(), *cluster.peer_addresses.values(), *cluster.http_addresses.values()]
    ports = [int(address.rpartition(":")[2]) for address in addresses]
    assert len(set(ports)) == 6

    def free(port: int) -> bool:
        with socket.socket() as other:
            try:
                other.bind(("127.0.0.1", port))
            except OSError:
                return False
            return True

    for port in ports:
        assert not free(port)
        with socket.create_server(("127.0.0.1", port)):  # as a node does
            pass
    http = ports[4:]
    del cluster
    gc.collect()
    assert all(free(port) for port in http)
    assert not any(free(port) for port in ports[:4])
    del again
    gc.collect()
    assert all(free(port) for port in ports)


def test_what_is_refused_has_begun_no_cluster(tmp_path: Path) -> None:
    """The directory said that it held one, of as many nodes as had been asked for then."""
    with pytest.raises(ConfigError, match="typo"):
        testing.LocalCluster(nodes=3, directory=tmp_path, settings={"typo.x": 1})
    made = testing.LocalCluster(nodes=5, directory=tmp_path)
    again = testing.LocalCluster(nodes=5, directory=tmp_path)
    assert again.addresses == made.addresses
    with pytest.raises(ConfigError, match="began with 5 nodes, not 3"):
        testing.LocalCluster(nodes=3, directory=tmp_path)
