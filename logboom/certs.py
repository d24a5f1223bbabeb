"""TLS: contexts for nodes and clients, and a test authority to try it with.

A directory holds ``ca.pem`` (signs nodes), ``client-ca.pem`` (signs clients; optional: then
``ca.pem`` does), ``<node id>.pem/.key`` and ``client.pem/.key``. TLS 1.3, certificates on both
sides; a node's certificate names its node id (SAN), which the other side checks. The files may be
replaced while nodes and clients run.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from logboom.errors import ConfigError

T = TypeVar("T")
COMMON_NAME_MAX: Final = 64
OF_CLIENTS: Final = "client-ca.pem"
_NAME: Final = re.compile(r"[!-.0-~]+")
"""ASCII without spaces; names of files, too."""
_PEM: Final = re.compile(r"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----(.+?)-----END", re.DOTALL)
"""A certificate in a file of PEM, under any of the names that TLS knows it by."""
_OURS: Final = frozenset(("ca", "client", "client-ca"))


def _context(purpose: int, directory: str | Path, name: str, authority: str) -> ssl.SSLContext:
    root = Path(directory)
    context = ssl.SSLContext(purpose)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # identity is the node id in the certificate, not where it was reached
    at = authority
    try:
        context.load_verify_locations(root / authority)
        at = f"{name}.pem, {name}.key"
        for file in (root / f"{name}.pem", root / f"{name}.key"):
            file.open("rb").close()  # its errors name the file
        context.load_cert_chain(root / f"{name}.pem", root / f"{name}.key", password=lambda: _no_phrase(root, name))
    except (OSError, ssl.SSLError) as error:
        where = error.filename or at
        raise ConfigError(
            f"TLS files in {root} for {name!r}: {where}: {error.strerror or error}; `logboom certs` makes a test set",
            path="tls.directory",
        ) from error
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _no_phrase(root: Path, name: str) -> str:
    """Nobody is there to be asked for one, or he would be in the middle of a loop that serves others."""
    raise ConfigError(
        f"TLS files in {root}: {name}.key is locked with a passphrase, which nobody could give when it is read again: "
        f"`openssl pkey -in {name}.key -out plain.key` unlocks it; keep it readable by its owner alone",
        path="tls.directory",
    )


Tls = ssl.SSLContext | Callable[[], ssl.SSLContext]
"""A context for all connections, or a function that makes the one for the next connection."""
LOOK_S: Final = 1.0


def current(tls: Tls | None) -> ssl.SSLContext | None:
    """What the next connection gets."""
    return tls() if tls is not None and not isinstance(tls, ssl.SSLContext) else tls


class Renewed(Generic[T]):
    """What is made of files that others replace while the process runs: certificates end. What is open stays."""

    def __init__(
        self,
        make: Callable[[], T],
        files: Iterable[Path],
        *,
        told: Callable[[str], None] = lambda _: None,
        still: bool = False,
    ) -> None:
        """Raises ConfigError. ``told`` hears, once, of files that do not fit together: those before are kept.

        ``still``: they are used once two looks find them the same, as a half of them could be taken for all.
        """
        self._make = make
        self._still = still
        self._files = list(files)
        self._told = told
        self._trouble = ""
        self._looked = time.monotonic()
        self._seen = self._last = stamps(self._files)
        self._made = make()

    def __call__(self) -> T:
        """Looks at the files once a second at most."""
        now = time.monotonic()
        if now - self._looked >= LOOK_S:
            self._looked, before, self._last = now, self._last, stamps(self._files)
            seen = self._last
            if seen == self._seen:
                self._trouble = ""
            elif seen == before or not self._still:
                try:
                    self._made, self._seen, self._trouble = self._make(), seen, ""
                except ConfigError as error:  # they are being replaced, one after the other
                    if self._trouble != str(error):
                        self._trouble = str(error)
                        self._told(self._trouble)
        return self._made

    @property
    def trouble(self) -> str:
        """What is wrong with the files as they were at the last look: nothing begins with those. Empty: nothing is."""
        return self._trouble


def stamps(files: Iterable[Path]) -> list[tuple[int, int, int] | None]:
    """Others as soon as one of them was replaced. None: it is not there."""
    found: list[tuple[int, int, int] | None] = []
    for file in files:
        try:
            stat = file.stat()
        except OSError:
            found.append(None)
        else:
            found.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
    return found


def peer_contexts(directory: str | Path, node_id: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Server and client side of the links between nodes. Raises ConfigError, naming the file."""
    return (
        _context(ssl.PROTOCOL_TLS_SERVER, directory, node_id, "ca.pem"),
        _context(ssl.PROTOCOL_TLS_CLIENT, directory, node_id, "ca.pem"),
    )


def _is_there(path: Path) -> bool:
    """Raises OSError where the disk does not say: with another authority others would be let in."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _client_authority(directory: str | Path) -> str:
    return OF_CLIENTS if _is_there(Path(directory) / OF_CLIENTS) else "ca.pem"


def check_apart(directory: str | Path) -> None:
    """Raises ConfigError if clients have no authority of their own: rules are for whoever is known to be no node.

    An authority signs by its key and its name, whatever the certificates say that it has had: one that was renewed is
    the same, and so, for whoever knows names alone, is one that has the name of another.
    """
    root = Path(directory)
    why = _not_apart(root)
    if why:
        raise ConfigError(
            f"access.file needs an authority for clients alone, {root / OF_CLIENTS}, {why}: "
            "whoever has a certificate of the nodes' authority could be taken for a node",
            path="access.file",
        )


def _not_apart(root: Path) -> str:
    if not _is_there(root / OF_CLIENTS):
        return "none of which is in ca.pem"
    if _texts(root, "ca.pem") & _texts(root, OF_CLIENTS):
        return "and a certificate of it is in ca.pem, too"
    of_nodes, of_clients = _authorities(root, "ca.pem"), _authorities(root, OF_CLIENTS)
    both = sorted(of_nodes.keys() & of_clients.keys())
    if both:
        return f"and {both[0]!r} is in ca.pem as well as in {OF_CLIENTS}"
    for one, signers, other, signed in (
        ("ca.pem", of_nodes, OF_CLIENTS, of_clients),
        (OF_CLIENTS, of_clients, "ca.pem", of_nodes),
    ):
        for name, by in signed.items():
            if signers.keys() & by:
                return f"and {name!r} in {other} was signed by {min(signers.keys() & by)!r} of {one}"
    return ""


def _texts(root: Path, name: str) -> set[str]:
    """Certificates as they are written there, without the line ends: of those that sign none, nothing else is known."""
    try:
        return {"".join(each.split()) for each in _PEM.findall((root / name).read_text("utf-8", "replace"))}
    except OSError as error:
        raise ConfigError(f"TLS files in {root}: {name}: {error.strerror or error}", path="tls.directory") from error


def _authorities(root: Path, name: str) -> dict[str, set[str]]:
    """The name of each that is trusted by that file, and of those who have signed it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(root / name)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"TLS files in {root}: {name}: {error.strerror or error}", path="tls.directory") from error
    found: dict[str, set[str]] = {}
    for each in context.get_ca_certs():
        found.setdefault(_plain(each["subject"]), set()).add(_plain(each["issuer"]))
    return found


def _plain(name: Any) -> str:
    """As TLS compares names: without regard to case and to how many spaces there are."""
    return ", ".join(f"{kind}={' '.join(value.split())}".lower() for part in name for kind, value in part)


def server_context(directory: str | Path, node_id: str, authority: str = "") -> ssl.SSLContext:
    """What a node shows its clients, and demands of them. ``authority``: their file, if it has to be that one."""
    return _context(ssl.PROTOCOL_TLS_SERVER, directory, node_id, authority or _client_authority(directory))


def client_context(directory: str | Path, name: str = "client") -> ssl.SSLContext:
    """What a client shows a node, and demands of it."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, directory, name, "ca.pem")


def renewed_client(directory: str | Path) -> Renewed[ssl.SSLContext]:
    """``client_context``, of the files as they are when a connection is made. Raises ConfigError."""
    return Renewed(lambda: client_context(directory), files_of(directory, "client"))


def renewed_node(
    directory: str | Path, node_id: str, told: Callable[[str], None], *, apart: bool = False
) -> tuple[Renewed[ssl.SSLContext], tuple[Renewed[ssl.SSLContext], Renewed[ssl.SSLContext]]]:
    """The same of ``server_context`` and ``peer_contexts``.

    ``apart``: nothing is made of files by which a client could be taken for a node (``check_apart``).
    """
    files = files_of(directory, node_id)

    def renewed(make: Callable[[], ssl.SSLContext]) -> Renewed[ssl.SSLContext]:
        def made() -> ssl.SSLContext:
            context = make()
            if apart:  # last: what is replaced in this moment is looked at as it is now
                check_apart(directory)
            return context

        return Renewed(made, files, told=told)

    return (
        renewed(_server_contexts(directory, node_id)),
        (
            renewed(lambda: peer_contexts(directory, node_id)[0]),
            renewed(lambda: peer_contexts(directory, node_id)[1]),
        ),
    )


def _server_contexts(directory: str | Path, node_id: str) -> Callable[[], ssl.SSLContext]:
    """Once clients have an authority of their own, theirs is not that of nodes again while its file is replaced."""
    authority = _client_authority(directory)

    def made() -> ssl.SSLContext:
        nonlocal authority
        if authority != OF_CLIENTS:
            authority = _client_authority(directory)
        return server_context(directory, node_id, authority)

    return made


def files_of(directory: str | Path, name: str) -> list[Path]:
    """All that is read for a node, or for clients, of that name."""
    return [Path(directory) / each for each in ("ca.pem", "client-ca.pem", f"{name}.pem", f"{name}.key")]


def make_test_authority(
    directory: str | Path,
    nodes: Sequence[str],
    hosts: Sequence[str] = (),
    days: int = 365,
    *,
    clients: Sequence[str] = (),
    keep_key: bool = False,
) -> None:
    """Two fresh authorities, a certificate per node, one for clients.

    ``clients``: names of further ones, each of which gets a directory of its own, ``clients/<name>``. ``keep_key``: the
    key that signs nodes is left there, too (``ca.key``), for ``issue_to_node``. Raises ConfigError if files are in the
    way, or for a name that cannot be in a certificate.
    """
    if not nodes:
        raise ConfigError("certificates of which nodes? name at least one", path="nodes")
    for node in nodes:
        if not _NAME.fullmatch(node) or node in _OURS or len(node) > COMMON_NAME_MAX:
            raise ConfigError(f"{node!r} cannot be a node's name in a certificate and of a file", path="nodes")
    for name in clients:
        if not _NAME.fullmatch(name) or not name.strip(".") or len(name) > COMMON_NAME_MAX:
            raise ConfigError(f"{name!r} cannot be a client's name in a certificate and of a directory", path="clients")
    for host in hosts:
        if not _NAME.fullmatch(host) and not _address(host):
            raise ConfigError(f"{host!r} cannot be a host's name in a certificate", path="hosts")
    root = Path(directory)
    root.mkdir(parents=True, exist_ok=True)
    if _is_there(root / "ca.pem"):
        raise ConfigError(f"{root} already holds an authority; remove it or choose another directory", path="dir")
    peers, of_clients = _Authority("logboom test peers", days), _Authority("logboom test clients", days)
    for node in nodes:
        peers.issue(root, node, [node, *hosts, "localhost", "127.0.0.1"])
    of_clients.issue(root, "client", ["client"])
    for name in clients:
        folder = root / "clients" / name
        folder.mkdir(parents=True, exist_ok=True)
        of_clients.issue(folder, "client", [name])
        _write(folder / "ca.pem", peers.pem())
    if keep_key:
        _write(root / "ca.key", _key_pem(peers.key))
    _write(root / "client-ca.pem", of_clients.pem())
    # Last: its presence says that the set is whole.
    _write(root / "ca.pem", peers.pem())


def issue_to_node(directory: str | Path, node: str, hosts: Sequence[str] = (), days: int = 365) -> None:
    """A certificate for one more node, of an authority that was made with ``keep_key``. Raises ConfigError."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    root = Path(directory)
    try:
        key = load_pem_private_key((root / "ca.key").read_bytes(), password=None)
        name = x509.load_pem_x509_certificate((root / "ca.pem").read_bytes()).subject
    except (OSError, ValueError) as error:
        raise ConfigError(f"the authority in {root} gives no other node a certificate: {error}", path="dir") from error
    _Authority(name, days, key).issue(root, node, [node, *hosts, "localhost", "127.0.0.1"])


def _key_pem(key: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization

    form = serialization.PrivateFormat.PKCS8
    return bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


class _Authority:
    def __init__(self, name: Any, days: int, key: Any = None) -> None:
        """``name``: as text, or that of an authority there is, with its key."""
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        self._days = days
        self.key = ec.generate_private_key(ec.SECP256R1()) if key is None else key
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]) if isinstance(name, str) else name
        self._certificate = self._sign(self._name, self.key.public_key(), [], authority=True)

    def pem(self) -> bytes:
        from cryptography.hazmat.primitives.serialization import Encoding

        return bytes(self._certificate.public_bytes(Encoding.PEM))

    def issue(self, root: Path, name: str, names: Sequence[str]) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, names[0])])
        certificate = self._sign(subject, key.public_key(), [_general(n) for n in dict.fromkeys(names)])
        _write(root / f"{name}.pem", certificate.public_bytes(serialization.Encoding.PEM))
        _write(root / f"{name}.key", _key_pem(key))

    def _sign(self, subject: Any, public_key: Any, names: Sequence[Any], *, authority: bool = False) -> Any:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes

        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=self._days))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )
        if authority:
            usage = x509.KeyUsage(
                digital_signature=True,
                key_cert_sign=True,
                crl_sign=True,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                encipher_only=False,
                decipher_only=False,
            )
            builder = builder.add_extension(usage, critical=True)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self.key, hashes.SHA256())


def _general(name: str) -> Any:
    from cryptography import x509

    address = _address(name)
    return x509.DNSName(name) if address is None else x509.IPAddress(address)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _write(path: Path, content: bytes) -> None:
    """As a whole or not at all: what is there is taken for made."""
    new = path.with_name(f"{path.name}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
