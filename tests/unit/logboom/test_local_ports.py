"""The ports of local clusters, which their nodes come back to."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from logboom import testing


@pytest.fixture
def says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in the place of the system's."""
    path = tmp_path / "ip_local_port_range"
    monkeypatch.setattr(testing, "PORT_RANGE", path, raising=False)
    return path


def test_no_outgoing_connection_is_given_the_port_of_a_node_that_is_down(says: Path) -> None:
    says.write_text("32768\t60999\n")
    for _ in range(5):
        found = testing.free_ports(12)
        assert len(set(found)) == 12
        assert all(port < 32768 for port in found)


@pytest.mark.parametrize("said", ["1024 65000", "nonsense", "", None])
def test_where_the_system_leaves_none_any_free_one_will_do(says: Path, said: str | None) -> None:
    if said is not None:
        says.write_text(said)
    assert len(set(testing.free_ports(3))) == 3


def test_one_that_is_taken_is_passed_over(says: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        number = taken.getsockname()[1]
        monkeypatch.setattr(testing, "_lasting_ports", lambda: range(number, number + 1), raising=False)
        assert testing.free_ports(1) != [number]
