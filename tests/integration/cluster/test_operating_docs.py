"""docs/operating.md, pasted: what its blocks say is done, with mutual TLS, and comes out as it is said."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cluster.pasted_world import Machines, block, machines, prose
from tests.integration.waiting import wait_for

pytestmark = [pytest.mark.process, pytest.mark.slow]

NODES = ("n1", "n2", "n3")
START = "logboom node --config n1.toml"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Machines]:
    with machines(tmp_path) as made:
        yield made


def clients_know(world: Machines) -> None:
    *exports, status = block("export LOGBOOM_ENDPOINTS").splitlines()
    assert status == "logboom status"
    world.environment |= dict(re.findall(r"^export (\w+)=(\S+)$", world.here("\n".join(exports)), re.MULTILINE))


def begin(world: Machines) -> None:
    """Three nodes that serve, by "A cluster of three machines"."""
    world.paste(block("logboom certs --dir tls"))
    own, http = block("http_address", "toml").splitlines(keepends=True)
    assert own == 'id = "n1"\n'
    for node in NODES:
        world.configure(node, more=http.replace("10.0.0.1", f"10.0.0.{node[1:]}"))
        assert "configuration is fine" in world.paste(f"logboom node --config {node}.toml --check")
        world.start(node)
    clients_know(world)
    world.healthy()


def test_a_member_more_one_that_moves_and_one_less(world: Machines) -> None:
    begin(world)
    if shutil.which("curl"):
        assert "ready" in world.paste(block("curl --cacert"), within="tls")
    world.paste("logboom submit -p 0 put k v")

    row = '  { id = "n4", peer_address = "10.0.0.4:7801", client_address = "10.0.0.4:7701" },\n'
    world.configure("n4", more=block("join = true", "toml"), rows=row)
    world.start("n4")
    listed = world.paste(block("members add n4="))
    assert re.search(r"^n4 +voter ", listed, re.MULTILINE), listed

    # The cluster is told, then it is elsewhere.
    world.paste(block("members update n2"))
    world.stop("n2")
    world.configure("n2", address="10.0.0.9")
    world.start("n2")
    wait_for(lambda: '"connected": false' not in world.paste("logboom members list -o json"))
    assert world.here("10.0.0.9:7701") in world.paste("logboom members list")

    removed = world.paste(block("logboom members remove n2"))
    assert not re.search(r"^n2 ", removed, re.MULTILINE), removed
    wait_for(lambda: '"removed"' in world.log("n2"))
    world.stop("n2")
    assert "v" in world.paste("logboom get -p 0 k")

    # An upgrade, to what there is already. Which process it is we know: others may run nodes here, too.
    pid, ends = str(world.pid("n1")), threading.Thread(target=world.forget, args=("n1",))
    upgrade = re.sub(r"\$\(pgrep -f '(.*)'\)", lambda by: pid if by[1] == START else "", block("pgrep"))
    ends.start()
    world.paste(upgrade.replace("\nlogboom status\n", "\n"))
    ends.join()
    world.healthy()


def test_a_backup_that_is_put_back_and_a_cluster_that_begins_again(world: Machines) -> None:
    begin(world)
    log = json.loads(world.paste("logboom partitions create --state-machine log -o json"))[0]["partition"]
    world.paste(f"logboom submit -p 0 put k v; logboom submit -p {log} record r")
    assert "n2" in world.paste(block("logboom snapshot create            # now"))
    taken = world.paste(block("logboom backup /backups/shop\n"))
    found = re.search(r"^global_index +(\d+)$", taken, re.MULTILINE)
    assert found is not None, taken
    world.paste("logboom submit -p 0 put later x; logboom snapshot create")
    wait_for((world.data("n1") / "journal" / "base").exists)
    for node in NODES:
        world.stop(node)

    verify(world)
    inspect(world, log)

    # All nodes, from one set, each into an empty place: the newest one, and the one by its index, which is the same.
    newest, by_index, start = block("logboom restore /backups/shop").splitlines()
    assert start == START
    for node, line in zip(NODES, (newest, by_index, newest), strict=True):
        world.configure(node, anew=True)
        world.paste(line.replace("n1.toml", f"{node}.toml").replace("4711", found[1]))
        world.start(node)
    world.healthy()
    assert "v" in world.paste("logboom get -p 0 k")
    assert "no such key" in world.paste("logboom get -p 0 later", status=1)
    assert re.search(r"\br\b", world.paste(f"logboom tail -p {log}"))
    assert "wrong_node" in world.paste(block("logboom backup /backups/shop\n"), status=2)

    # Most of them lost.
    for node in NODES:
        world.stop(node)
    look, act, start = block("logboom recover --config n1.toml").splitlines()
    assert "nothing was changed" in world.paste(look)
    world.paste(act)
    assert start == START
    world.start("n1")
    wait_for(lambda: world.succeeds("logboom get -p 0 k --node n1"))
    assert "no majority" not in world.paste("logboom status --node n1")


def verify(world: Machines) -> None:
    world.said["/var/lib/logboom"] = str(world.data("n1"))
    for line in block("logboom verify /var/lib/logboom").splitlines():
        assert "; nothing is damaged" in world.paste(line)


def inspect(world: Machines, log: int) -> None:
    """All kinds of files; of a backup those of a partition that keeps records."""
    (*_, newest) = sorted((world.data("n1") / "snapshots").glob("*.set"))
    as_here = {"00000000000000004711.set": newest.name, "DIR/logs/0/": f"DIR/logs/{log}/"}
    world.said |= {"DATA/": f"{world.data('n1')}/", "DIR/": f"{world.here('/backups/shop')}/"}
    for line in block("logboom inspect manifest").splitlines():
        for said, meant in as_here.items():
            line = line.replace(said, meant)  # noqa: PLW2901
        assert world.paste(line)


def names_of_clients() -> str:
    """The option that the page gives those who go by rules."""
    found = re.search(r"`(--clients [\w,-]+)`", prose())
    assert found is not None
    return found[1]


def begin_with_rules(world: Machines, directory: Path) -> None:
    """By "Who may do what"; we are ``ops``."""
    world.paste(f"{block('logboom certs --dir tls').rstrip()} {names_of_clients()}")
    (directory / "rules.toml").write_text(block('principal = "ops"', "toml"))
    access = block("[access]", "toml").replace("/etc/logboom/rules.toml", "rules.toml")
    for node in NODES:
        world.configure(node, last=access)
        world.start(node)
    clients_know(world)
    world.environment["LOGBOOM_TLS_DIR"] = "tls/clients/ops"
    world.healthy()


def test_certificates_of_our_own_authority_are_replaced(world: Machines, tmp_path: Path) -> None:
    begin_with_rules(world, tmp_path)
    world.paste("logboom submit -p 0 put k v")
    made, *both = block("cat tls/ca.pem").splitlines()
    world.paste("\n".join([f"{made} {names_of_clients()}", *both]))

    def everybody_takes(*files: tuple[str, str]) -> None:
        for new, old in files:
            shutil.copy(tmp_path / new, tmp_path / "tls" / f"{old}.part")
            (tmp_path / "tls" / f"{old}.part").replace(tmp_path / "tls" / old)
        world.healthy()

    def authorities(place: str) -> list[tuple[str, str]]:
        places = [("ca.pem", "ca.pem"), ("client-ca.pem", "client-ca.pem"), ("ca.pem", "clients/ops/ca.pem")]
        return [(f"{place}/{new}", old) for new, old in places]

    own = [f"{who}.{kind}" for who in (*NODES, "clients/ops/client") for kind in ("pem", "key")]
    for files in (authorities("both"), [(f"new/{name}", name) for name in own], authorities("new")):
        everybody_takes(*files)
        world.stop("n1")  # who begins anew knows all others by what it finds now, and is known to them
        world.start("n1")
        wait_for(lambda: '"connected": false' not in world.paste("logboom members list -o json"))
        world.healthy()
    assert "v" in world.paste("logboom get -p 0 k")
    world.environment["LOGBOOM_TLS_DIR"] = "new"  # which nobody has a rule for
    assert "permission_denied" in world.paste("logboom get -p 0 k", status=1)


def test_a_disk_on_which_nothing_is_admitted_any_more(world: Machines) -> None:
    """As with all disks full: more has to be free than there is anywhere."""
    begin(world)
    world.paste("logboom submit -p 0 put k v")

    def with_settings(last: str) -> None:
        for node in NODES:
            world.stop(node)
            world.configure(node, last=last)
            world.start(node)

    with_settings(f"[admission]\ndisk_free_bytes_min = {1 << 60}\n")
    wait_for(lambda: "can take no writes: disk_free" in world.paste("logboom status || true"))
    assert "overloaded" in world.paste("logboom submit -p 0 put k w --timeout 2s", status=1)
    assert "no room" in world.paste("logboom snapshot create --timeout 10s", status=3)
    assert world.paste("logboom get -p 0 k").split()[-1] == "v"

    with_settings(block("disk_free_bytes_min", "toml"))
    world.healthy()
    world.paste(block("put room made"))
    wait_for((world.data("n1") / "journal" / "base").exists)


def test_who_may_do_what(world: Machines, tmp_path: Path) -> None:
    begin_with_rules(world, tmp_path)

    def go_as(who: str) -> None:
        world.environment["LOGBOOM_TLS_DIR"] = f"tls/clients/{who}"

    assert "8" in world.paste("logboom partitions create --state-machine log")
    go_as("spark-jobs")
    world.paste("logboom submit -p 7 put k v")
    assert "permission_denied" in world.paste("logboom submit -p 8 record r", status=1)
    go_as("billing")
    world.paste("logboom tail -p 8; logboom cursors set billing 1 -p 8")
    assert "permission_denied" in world.paste("logboom get -p 7 k", status=1)
    go_as("prometheus")
    world.paste("logboom watermarks")
    assert "permission_denied" in world.paste("logboom tail -p 8", status=1)
