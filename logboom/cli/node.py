"""``node``, ``local``, ``demo``, ``certs``: running things."""

from __future__ import annotations

import gc
import json
import signal
import sys
import threading
import time
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from logboom import config
from logboom.cli import talk
from logboom.errors import ConfigError
from logboom.settings import Settings


@click.command(epilog="Example:  logboom node --config n1.toml")
@click.option("--config", "file", type=click.Path(), help="TOML file; LOGBOOM_<SECTION>__<KEY> overrides it.")
@click.option("--id", "node_id", help="This node's id among cluster.members.")
@click.option("--data-dir", help="Where to keep data.")
@click.option("--check", is_flag=True, help="Only check the configuration, certificates, rules, and what it names.")
def node(file: str | None, node_id: str | None, data_dir: str | None, check: bool) -> None:
    """Run one node until SIGTERM."""
    settings = config.load(file, flags={"node.id": node_id, "node.data_dir": data_dir})
    config.check_node(settings)
    if check:
        if settings.tls.directory:
            import_module("logboom.certs").renewed_node(settings.tls.directory, settings.node.id, click.echo)
            _check_ends(settings)
        if settings.access.file:
            import_module("logboom.access").of_node(settings, click.echo)
        _check_names(settings)
        talk("configuration is fine")
        return
    sys.exit(server_module("server.main").run(settings))


def _check_names(settings: Settings) -> None:
    """Whatever others have written, and the settings name, is installed here. Raises ConfigError."""
    machines, cluster = server_module("partitions.machines"), settings.cluster
    for name in sorted({cluster.state_machine, *(own.state_machine for own in cluster.overrides.values())}):
        machines.machine_class(name)
    signals = server_module("dispatcher.admission.signals")
    signals.make(settings.admission, free_bytes=lambda: 0, resident_bytes=lambda: 0)


def _check_ends(settings: Settings) -> None:
    """None of the node's certificates has ended; says which end soon. Raises ConfigError."""
    now = time.time()
    for file, ends in (
        server_module("server.watching.certificates").ends_of(settings.tls.directory, settings.node.id).items()
    ):
        day = datetime.fromtimestamp(ends, UTC).date()
        if ends <= now:
            where = Path(settings.tls.directory) / file
            raise ConfigError(
                f"{where} has ended on {day}: nobody takes it any more (docs/operating.md, Certificates)",
                path="tls.directory",
            )
        if ends - now < settings.tls.warn_days * 86_400:
            talk(f"{file} ends on {day} (docs/operating.md, Certificates)")


def server_module(name: str) -> Any:
    """A module of the server, which lives beside this package in a checkout and inside it in a wheel."""
    inside = Path(__file__).resolve().parent.parent / "_server"
    root = inside if inside.exists() else inside.parent.parent
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    gc.disable()  # modules are not garbage: to look for some among them is a tenth of a node's start
    hidden = "rich" not in sys.modules
    if hidden:
        sys.modules["rich"] = None  # type: ignore[assignment]  # else structlog takes it along, another fifth
    try:
        return import_module(name)
    finally:
        gc.enable()
        if hidden:
            del sys.modules["rich"]


@click.command(
    short_help="A cluster of real processes on this machine.",
    epilog="Example:  logboom local --nodes 3 --partitions 8 --state-machine kv",
)
@click.option("--nodes", default=3, show_default=True, type=click.IntRange(1, 9), help="How many, n1 to n9.")
@click.option("--dir", "directory", type=click.Path(), help="Keep data here (default: temporary, removed at the end).")
@click.option("--partitions", default=8, show_default=True, type=click.IntRange(1), help="How many to begin with.")
@click.option("--state-machine", default="kv", show_default=True, help="Of all of them: kv, log, or one of your own.")
@click.option("--tls", is_flag=True, help="Mutual TLS with a test authority made on the spot.")
@click.option("-o", "--output", type=click.Choice(["table", "json", "jsonl"]), default="table", show_default=True)
def local(
    nodes: int,
    directory: str | None,
    partitions: int,
    state_machine: str,
    tls: bool,
    output: str,
) -> None:
    """A cluster of real processes on loopback; prints its endpoints, runs until Ctrl-C."""
    from logboom.testing import LocalCluster

    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is signal.SIG_DFL:  # nohup
            signal.signal(number, lambda *_: ended.set())
    with LocalCluster(
        nodes=nodes, partitions=partitions, state_machine=state_machine, directory=directory, tls=tls, http=True
    ) as cluster:
        if output != "table":
            about = {
                "endpoints": cluster.endpoints,
                "directory": str(cluster.directory),
                "nodes": cluster.addresses,
                "http": {name: cluster.url(name) for name in cluster.nodes},
            }
            click.echo(json.dumps(about))
        else:
            click.echo(f"{nodes} nodes serve {partitions} {state_machine} partitions; data in {cluster.directory}")
            if cluster.tls_directory:
                click.echo(f"export LOGBOOM_TLS_DIR={cluster.tls_directory}")
            click.echo(f"export LOGBOOM_ENDPOINTS={cluster.endpoints}")
            for name in cluster.nodes:
                click.echo(f"{name}: {cluster.url(name)}  (status page; also /metrics /readyz /healthz /status)")
            talk("Ctrl-C ends it.")
        gone: set[str] = set()
        while not ended.wait(1.0):
            for name in cluster.nodes:
                if name not in gone and not cluster.alive(name):
                    gone.add(name)
                    talk(f"logboom: {name} has ended by itself; its log: {cluster.log(name)}")


@click.command(short_help="A Spark job into three nodes; then the leader dies.", epilog="Example:  logboom demo")
@click.option("--endpoints", envvar="LOGBOOM_ENDPOINTS", help="Use this cluster, and kill nobody; LOGBOOM_ENDPOINTS.")
@click.option(
    "--tls-dir", envvar="LOGBOOM_TLS_DIR", type=click.Path(), help="ca.pem, client.pem and client.key; LOGBOOM_TLS_DIR."
)
@click.option("--rows", type=click.IntRange(1), help="Only so many rows.")
@click.option("--dir", "directory", type=click.Path(), help="Keep the nodes' data here (default: temporary).")
@click.option("--kill-hook", help="With --endpoints: a command that kills the node whose id it gets, for job 2.")
def demo(
    endpoints: str | None, tls_dir: str | None, rows: int | None, directory: str | None, kill_hook: str | None
) -> None:
    """Spark submits 336,776 real commands, three nodes apply them, everything is compared; then the leader dies.

    With --endpoints, or LOGBOOM_ENDPOINTS, it writes into that cluster and kills nobody. What it wrote stays there:
    some 4,000 keys, the numbers of aircraft.
    """
    run = import_module("logboom.demo").run
    sys.exit(run(endpoints=endpoints, tls_directory=tls_dir, rows=rows, directory=directory, kill_hook=kill_hook))


@click.command("certs", epilog="Example:  logboom certs --dir tls --nodes n1,n2,n3")
@click.option("--dir", "directory", required=True, type=click.Path(), help="Where to write.")
@click.option("--nodes", required=True, help="Node ids, comma-separated.")
@click.option("--hosts", default="", help="Further host names for every node's certificate.")
@click.option("--clients", default="", help="Names of clients, each with a certificate of its own in clients/NAME.")
@click.option("--days", default=365, show_default=True, type=click.IntRange(1, 36_500))
@click.option("--if-missing", is_flag=True, help="Do nothing if there is an authority already.")
def make_certs(directory: str, nodes: str, hosts: str, clients: str, days: int, if_missing: bool) -> None:
    """A test authority, a certificate per node, one for clients. Not for production."""
    from logboom.certs import make_test_authority

    if if_missing and (Path(directory) / "ca.pem").exists():
        return
    names, others, users = ([n.strip() for n in each.split(",") if n.strip()] for each in (nodes, hosts, clients))
    make_test_authority(directory, names, others, days, clients=users)
    talk(f"wrote certificates of {', '.join(names)} and {', '.join(users) or 'a client'} to {directory}")
