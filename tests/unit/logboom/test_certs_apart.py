"""Where rules hold, clients have an authority of their own: what signs them signs no node, by whatever certificate."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from logboom import certs
from logboom.errors import ConfigError
from server.world.addresses import names_in

Files = tuple[str, str]
"""What is in `ca.pem`, and in `client-ca.pem`."""


def named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def signed(by: certs._Authority, name: str) -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    made = by._sign(named(name), key.public_key(), [], authority=True)
    return str(made.public_bytes(Encoding.PEM).decode())


def pem(authority: certs._Authority) -> str:
    return authority.pem().decode()


@pytest.fixture
def nodes(tmp_path: Path) -> certs._Authority:
    certs.make_test_authority(tmp_path, ["n1", "n2"], keep_key=True)
    return certs._Authority("logboom test peers", 700, load_pem_private_key((tmp_path / "ca.key").read_bytes(), None))


@pytest.mark.parametrize(
    ("files", "why"),
    [
        (lambda ours, other: (ours, pem(other)), "'commonname=logboom test peers' is in ca.pem as well"),
        (lambda ours, _: (ours, ours.replace("CERT", "X509 CERT")), "a certificate of it is in ca.pem"),
        (lambda ours, _: (ours.replace("CERT", "TRUSTED CERT"), ours), "a certificate of it is in ca.pem"),
        (
            lambda ours, _: (ours, pem(certs._Authority("Logboom  Test peers", 9))),
            "'commonname=logboom test peers' is in ca.pem as well",
        ),
        (
            lambda ours, other: (ours, pem(certs._Authority("clients", 9)) + signed(other, "more clients")),
            "'commonname=more clients' in client-ca.pem was signed by 'commonname=logboom test peers' of ca.pem",
        ),
        (
            lambda ours, other: (ours + signed(other, "some nodes"), signed(other, "Some Nodes")),
            "'commonname=some nodes' is in ca.pem as well as in client-ca.pem",
        ),
    ],
)
def test_what_signs_nodes_signs_no_client(
    tmp_path: Path, nodes: certs._Authority, files: Callable[[str, certs._Authority], Files], why: str
) -> None:
    certs.check_apart(tmp_path)
    write(tmp_path, files((tmp_path / "ca.pem").read_text(), nodes))
    with pytest.raises(ConfigError, match=rf"{re.escape(why)}.*taken for a node") as caught:
        certs.check_apart(tmp_path)
    assert (caught.value.path, "client-ca.pem" in caught.value.message) == ("access.file", True)


def test_nor_the_other_way_round(tmp_path: Path, nodes: certs._Authority) -> None:
    clients = certs._Authority("clients", 9)
    write(tmp_path, (pem(nodes) + signed(clients, "more nodes"), pem(clients)))
    why = r"'commonname=more nodes' in ca\.pem was signed by 'commonname=clients' of client-ca\.pem"
    with pytest.raises(ConfigError, match=why):
        certs.check_apart(tmp_path)


def test_one_of_another_name_may_follow_another(tmp_path: Path, nodes: certs._Authority) -> None:
    """While authorities are replaced both files have two, of which those of one file may have the same name."""
    before, clients = (tmp_path / "ca.pem").read_text(), (tmp_path / "client-ca.pem").read_text()
    write(tmp_path, (before + pem(nodes), clients + pem(certs._Authority("logboom test clients", 9))))
    certs.check_apart(tmp_path)


def test_a_certificate_that_signs_none_is_known_as_it_is_written(tmp_path: Path, nodes: certs._Authority) -> None:
    one = (tmp_path / "n1.pem").read_text()
    write(tmp_path, (pem(nodes) + one, (tmp_path / "client-ca.pem").read_text() + one.replace("\n", "\r\n")))
    with pytest.raises(ConfigError, match=r"a certificate of it is in ca\.pem"):
        certs.check_apart(tmp_path)


@pytest.mark.parametrize("broken", ["ca.pem", "client-ca.pem"])
def test_a_file_that_nobody_can_read_is_named(tmp_path: Path, nodes: certs._Authority, broken: str) -> None:
    del nodes
    (tmp_path / broken).write_text("nothing")
    with pytest.raises(ConfigError, match=rf"TLS files in .*: {broken}: "):
        certs.check_apart(tmp_path)


def test_tls_would_have_taken_a_client_for_a_node(tmp_path: Path, nodes: certs._Authority) -> None:
    """Why: it looks at the key and the name of who has signed, whatever certificate of it is in the file."""
    renewed = tmp_path / "renewed"
    renewed.mkdir()
    write(renewed, (pem(nodes), pem(nodes)))
    nodes.issue(renewed, "client", ["n2"])
    write(tmp_path, ((tmp_path / "ca.pem").read_text(), pem(nodes)))
    assert handshaken(certs.peer_contexts(tmp_path, "n1")[0], certs.client_context(renewed)) == {"n2"}
    with pytest.raises(ConfigError):
        certs.check_apart(tmp_path)


def write(directory: Path, files: Files) -> None:
    for name, text in zip(("ca.pem", "client-ca.pem"), files, strict=True):
        (directory / name).write_text(text)


def handshaken(server: ssl.SSLContext, client: ssl.SSLContext) -> set[str]:
    """The names that the server sees, without a socket."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours, theirs = server.wrap_bio(there, back, server_side=True), client.wrap_bio(back, there)
    left = [theirs, ours]
    while left:
        for side in list(left):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            left.remove(side)
    return set(names_in(ours.getpeercert()))
