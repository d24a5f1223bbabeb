"""Certificates end: a process that runs for years takes the files that have been put in the place of others."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from logboom import certs
from logboom.errors import ConfigError
from logboom.wire import Frame, Kind, encode
from ports.net import ConnectionLimits
from tests.unit.server.net_world import LIMITS, PATIENCE_S, Serving, Session, serving


@pytest.fixture(autouse=True)
def _look_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certs, "LOOK_S", 0.0)


async def let_in(it: Serving, tls: ssl.SSLContext) -> bool:
    seen = len(it.sessions)
    try:
        made = await it.network.dial(it.address, Session(), limits=ConnectionLimits(**LIMITS), tls=tls)
    except OSError:  # what TLS refuses is one
        return False
    made.abort()
    return len(it.sessions) > seen


async def test_new_files_are_used_for_new_connections(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    certs.make_test_authority(ours, ["n1", "n2"])
    told: list[str] = []
    _, (server, _) = certs.renewed_node(ours, "n1", told.append)
    before = certs.peer_contexts(ours, "n2")[1]
    async with serving(tls=server) as it:
        assert await let_in(it, before)
        shutil.rmtree(ours)
        assert await let_in(it, before)  # nothing is there: what was is kept
        certs.make_test_authority(ours, ["n1", "n2"])
        assert await let_in(it, certs.peer_contexts(ours, "n2")[1])
        assert not await let_in(it, before)
    assert len(told) == 1


async def test_files_that_do_not_fit_together_change_nothing(tmp_path: Path) -> None:
    ours, others = tmp_path / "ours", tmp_path / "others"
    certs.make_test_authority(ours, ["n1", "n2"])
    certs.make_test_authority(others, ["n1", "n2"])
    told: list[str] = []
    _, (server, _) = certs.renewed_node(ours, "n1", told.append)
    before, after = certs.peer_contexts(ours, "n2")[1], certs.peer_contexts(others, "n2")[1]
    async with serving(tls=server) as it:
        for name in ("n1.pem", "ca.pem"):  # the key is still the one before
            (others / name).replace(ours / name)
            assert await let_in(it, before)
            assert not await let_in(it, after)
        (others / "n1.key").replace(ours / "n1.key")
        assert await let_in(it, after)
    assert len(told) == 1
    assert "n1" in told[0]


def test_a_key_with_a_passphrase_is_told_as_that_and_nobody_is_asked(tmp_path: Path) -> None:
    """TLS asks on the terminal, if there is one, and for ever; else it has an invalid argument."""
    certs.make_test_authority(tmp_path, ["n1"])
    file = tmp_path / "client.key"
    key = serialization.load_pem_private_key(file.read_bytes(), password=None)
    lock = serialization.BestAvailableEncryption(b"secret")
    file.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock))
    with pytest.raises(ConfigError, match=r"client\.key is locked with a passphrase.*openssl pkey"):
        certs.client_context(tmp_path)


def test_an_authority_that_was_not_written_to_its_end_is_made_anew(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from logboom import certs\n"
        "opened = os.fdopen\n"
        "def full(descriptor, *how):\n"
        "    if 'ca.pem' == os.path.basename(os.readlink(f'/proc/self/fd/{descriptor}')).removesuffix('.new'):\n"
        "        os.kill(os.getpid(), 9)\n"
        "    return opened(descriptor, *how)\n"
        "os.fdopen = full\n"
        "certs.make_test_authority(sys.argv[1], ['n1'])\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == -9
    command = [sys.executable, "-m", "logboom", "certs", "--dir", str(tmp_path), "--nodes", "n1", "--if-missing"]
    subprocess.run(command, check=True)
    certs.peer_contexts(tmp_path, "n1")


class Asking(Session):
    """Whether anybody answers."""

    def __init__(self) -> None:
        super().__init__()
        self.over = asyncio.Event()

    def frame(self, frame: Frame) -> None:
        self.frames.append(frame)
        self.over.set()

    def closed(self, error: Exception | None) -> None:
        super().closed(error)
        self.over.set()


async def answered(it: Serving, tls: ssl.SSLContext) -> bool:
    """A client learns only afterwards that its certificate was not taken."""
    asking = Asking()
    try:
        made = await it.network.dial(it.address, asking, limits=ConnectionLimits(**LIMITS), tls=tls)
    except OSError:
        return False
    made.send(encode(Kind.PING, {}, request_id=1))
    async with asyncio.timeout(PATIENCE_S):
        await asking.over.wait()
    made.abort()
    return bool(asking.frames)


async def test_while_the_clients_authority_is_replaced_theirs_is_not_that_of_nodes(tmp_path: Path) -> None:
    """Every client would be refused for a moment, and whoever has a certificate of a node's would be one."""
    certs.make_test_authority(tmp_path, ["n1", "n2"])
    told: list[str] = []
    server, _ = certs.renewed_node(tmp_path, "n1", told.append)
    client, node = certs.client_context(tmp_path), certs.peer_contexts(tmp_path, "n2")[1]
    own = tmp_path / "client-ca.pem"
    async with serving(tls=server) as it:
        assert (await answered(it, client), await answered(it, node)) == (True, False)
        before = own.read_bytes()
        own.unlink()
        assert (await answered(it, client), await answered(it, node)) == (True, False)
        own.write_bytes(before)
        assert (await answered(it, client), await answered(it, node)) == (True, False)
    assert [("client-ca.pem" in each) for each in told] == [True]


async def test_clients_may_get_an_authority_of_their_own_while_a_node_runs(tmp_path: Path) -> None:
    certs.make_test_authority(tmp_path, ["n1", "n2"])
    client, node = certs.client_context(tmp_path), certs.peer_contexts(tmp_path, "n2")[1]
    own = tmp_path / "client-ca.pem"
    own.rename(tmp_path / "later.pem")
    server, _ = certs.renewed_node(tmp_path, "n1", pytest.fail)
    async with serving(tls=server) as it:
        assert (await answered(it, client), await answered(it, node)) == (False, True)
        (tmp_path / "later.pem").rename(own)
        assert (await answered(it, client), await answered(it, node)) == (True, False)


async def test_where_rules_hold_no_client_is_taken_for_a_node_whatever_is_replaced(tmp_path: Path) -> None:
    """That clients have an authority of their own was looked at when the node started, and never again."""
    certs.make_test_authority(tmp_path, ["n1", "n2"])
    told: list[str] = []
    _, (peers, _) = certs.renewed_node(tmp_path, "n1", told.append, apart=True)
    client, node = certs.client_context(tmp_path), certs.peer_contexts(tmp_path, "n2")[1]
    nodes, clients = (tmp_path / name for name in ("ca.pem", "client-ca.pem"))
    before = nodes.read_text()
    async with serving(tls=peers) as it:
        nodes.write_text(before + clients.read_text())
        assert (await answered(it, client), await answered(it, node)) == (False, True)
        nodes.write_text(before)
        assert (await answered(it, client), await answered(it, node)) == (False, True)
    assert [("authority for clients alone" in each) for each in told] == [True]
