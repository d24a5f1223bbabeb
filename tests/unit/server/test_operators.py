"""What operators see over HTTP, but for metrics: health, status, the page, and what is not there."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from pathlib import Path

import pytest

from logboom import Put, certs
from logboom.access import Right, Rule, Rules
from logboom.testing import free_ports
from ports.http import HttpRequest
from server.watching.page import PAGE, PAGE_HEADERS
from tests.unit.server.watched import fetch, watched


async def test_a_node_that_serves_is_healthy_and_ready(tmp_path: Path) -> None:
    async with watched(tmp_path) as it:
        await it.boom.submit(0, Put(b"k", b"v"))
        assert ((await it.get("/healthz")).status, (await it.get("/healthz")).body) == (200, b"ok\n")
        assert ((await it.get("/readyz")).status, (await it.get("/readyz")).body) == (200, b"ready\n")


async def test_readiness_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched(tmp_path) as it:
        await it.boom.submit(0, Put(b"k", b"v"))

        async def why() -> str:
            response = await it.get("/readyz")
            assert response.status == 503
            assert (await it.get("/healthz")).status == 200  # it lives; killing it would help nobody
            return response.body.decode()

        it.node.pipeline.recovery._left = {2}
        assert await why() == "not ready: recovering: 1 of 3 partitions are not there yet (2)\n"
        it.node.pipeline.recovery._left = set()
        with monkeypatch.context() as patched:
            patched.setattr(type(it.node.pipeline.raft.engine), "leader", property(lambda _: None))
            assert await why() == "not ready: no leader is known\n"
        with monkeypatch.context() as patched:
            patched.setattr(it.node.pipeline, "role", lambda: "removed")
            assert "no member" in await why()
        assert (await it.get("/readyz")).status == 200
        await it.node.hand_over()
        assert await why() == "not ready: it is stopping\n"


async def test_status_is_what_clients_are_told(tmp_path: Path) -> None:
    async with watched(tmp_path) as it:
        await it.boom.submit(1, Put(b"k", b"v"))
        response = await it.get("/status")
        told = await it.boom.status()
    said = json.loads(response.body)
    assert response.content_type == "application/json"
    assert set(said) == set(told)
    for name in ("node", "cluster", "role", "commit_index", "partitions", "members", "version"):
        assert said[name] == json.loads(json.dumps(told[name])), name


async def test_of_a_crowd_of_statuses_each_turn_of_the_loop_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty-four connections that asked at once had all of theirs put together in a row."""
    async with watched(tmp_path) as it:
        loop, turn, turns = asyncio.get_running_loop(), 0, list[int]()

        async def status() -> dict[str, int]:
            turns.append(turn)
            return {}

        def next_turn() -> None:
            nonlocal turn
            turn += 1
            if len(turns) < 8:
                loop.call_soon(next_turn)

        monkeypatch.setattr(it.node.service, "status", status)
        next_turn()
        responses = await asyncio.gather(*(it.get("/status") for _ in range(8)))
    assert {response.status for response in responses} == {200}
    assert len(turns) == len(set(turns)) == 8


async def test_whoever_operates_a_node_waits_for_no_crowd_of_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All who asked for a status were in one line, one a turn: those of one connection may be thousands."""
    async with watched(tmp_path) as it:
        service = it.node.service
        clients = [asyncio.ensure_future(it.boom.status()) for _ in range(100)]
        held = asyncio.Event()
        status = service.status

        async def slow(**how: bool) -> dict[str, object]:
            await held.wait()
            return await status(**how)

        monkeypatch.setattr(service, "status", slow)
        async with asyncio.timeout(20):
            while not service.one_status._lock.locked():  # type: ignore[attr-defined]  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.001)
            monkeypatch.setattr(service, "status", status)
            assert (await it.get("/status")).status == 200
            assert not all(client.done() for client in clients)
            held.set()
            await asyncio.gather(*clients)


@pytest.mark.parametrize(
    ("role", "ready"),
    [("leader", 1), ("follower", 1), ("learner", 1), ("rejoining", 0), ("joining", 0), ("waiting", 0)],
)
async def test_who_is_to_vote_again_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str, ready: int
) -> None:
    """Else the next node is replaced meanwhile, and there is no majority."""
    async with watched(tmp_path) as it:
        monkeypatch.setattr(it.node.service.backend, "role", lambda: role)
        response = await it.get("/readyz")
        assert response.status == (200 if ready else 503)
        assert (f"not ready: {role}".encode() in response.body) == (not ready)
        assert f"logboom_ready {float(ready)}" in (await it.get("/metrics")).body.decode()


async def test_what_is_not_there(tmp_path: Path) -> None:
    async with watched(tmp_path) as it:
        for path in ("/nothing", "/debug/stacks", "/status/", "//", "/metrics/../status"):
            response = await it.get(path)
            assert response.status == 404, path
            assert b"/metrics" in response.body
        found = (await it.get("/metrics")).body.decode()
    assert 'http_requests_total{path="other",status="404"} 5.0' in found  # names of others make no series


async def test_stacks_only_where_they_are_asked_for(tmp_path: Path) -> None:
    async with watched(tmp_path, http__debug=True) as it:
        text = (await it.get("/debug/stacks")).body.decode()
    assert "thread MainThread" in text
    assert "test_stacks_only_where_they_are_asked_for" in text
    assert "task " in text


async def test_who_may_look_by_the_rules(tmp_path: Path) -> None:
    async with watched(tmp_path, http__debug=True) as it:
        it.node.service.rules = Rules([Rule("prometheus", (Right.STATUS,)), Rule("ops", (Right.ADMIN,))])

        async def statuses(*names: str) -> list[int]:
            pages = ("/", "/metrics", "/status", "/debug/stacks", "/healthz", "/readyz", "/nothing")
            asked = [HttpRequest("GET", page, names=frozenset(names)) for page in pages]
            return [(await it.operators.respond(each)).status for each in asked]

        assert await statuses("ops") == [200] * 6 + [404]
        assert await statuses("prometheus") == [200, 200, 200, 403, 200, 200, 404]
        assert await statuses("somebody") == await statuses() == [403] * 4 + [200, 200, 404]
        refused = await it.operators.respond(HttpRequest("GET", "/debug/stacks", names=frozenset({"prometheus"})))
        assert b"`admin`" in refused.body
        assert it.node.service.counts.denied == {Right.STATUS: 6, Right.ADMIN: 4}


async def test_over_the_socket_and_compressed_if_asked(tmp_path: Path) -> None:
    async with watched(tmp_path) as it:
        address = it.node.settings.node.http_address
        url = f"http://{address}/metrics"
        plain = await asyncio.to_thread(fetch, url)
        packed = await asyncio.to_thread(fetch, url, **{"Accept-Encoding": "gzip"})
    assert plain[0] == packed[0] == 200
    assert "content-encoding" not in plain[1]
    assert packed[1]["content-encoding"] == "gzip"
    assert len(packed[2]) < len(plain[2]) / 3


async def test_probes_need_no_certificate_where_all_else_does(tmp_path: Path) -> None:
    certs.make_test_authority(tmp_path / "tls", ["n1"])
    probes = f"127.0.0.1:{free_ports(1)[0]}"
    async with watched(tmp_path, tls__directory=str(tmp_path / "tls"), node__probe_address=probes) as it:
        for path, status in (("healthz", 200), ("readyz", 200), ("status", 404), ("metrics", 404), ("", 404)):
            assert (await asyncio.to_thread(fetch, f"http://{probes}/{path}"))[0] == status, path
        operators = it.node.settings.node.http_address
        for url in (f"http://{operators}/healthz", f"https://{operators}/healthz"):
            with pytest.raises(OSError):
                await asyncio.to_thread(fetch, url)


async def test_probes_alone(tmp_path: Path) -> None:
    probes = f"127.0.0.1:{free_ports(1)[0]}"
    async with watched(tmp_path, node__http_address="", node__probe_address=probes) as it:
        assert (await asyncio.to_thread(fetch, f"http://{probes}/readyz"))[2] == b"ready\n"
        it.node.watching.stopping()
        assert (await asyncio.to_thread(fetch, f"http://{probes}/readyz"))[0] == 503
        assert (await asyncio.to_thread(fetch, f"http://{probes}/healthz"))[0] == 200


async def test_nobody_keeps_probes_out(tmp_path: Path) -> None:
    """Whoever reached the port had the node restarted, by as many connections as there may be that said nothing."""
    port = free_ports(1)[0]
    async with watched(tmp_path, node__probe_address=f"127.0.0.1:{port}") as it:
        ports = it.node.watching._listeners
        assert [each.limits.request_s for each in ports] == [5.0, 2.0]  # type: ignore[attr-defined]
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2 * 64)]
        for _ in range(3):
            assert (await asyncio.to_thread(fetch, f"http://127.0.0.1:{port}/healthz"))[0] == 200
        for _, writer in silent:
            writer.close()


async def test_without_an_address_there_is_nothing(tmp_path: Path) -> None:
    async with watched(tmp_path, node__http_address="") as it:
        assert it.node.watching.operators is None
        await it.boom.submit(0, Put(b"k", b"v"))


def test_the_page_needs_nothing_from_elsewhere() -> None:
    text = PAGE.decode()
    assert not re.search(r"(src|href)=\"(?!data:|status|metrics|readyz)", text)
    assert "width=device-width" in text
    policy = PAGE_HEADERS["Content-Security-Policy"]
    for tag in ("script", "style"):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "innerHTML" not in text  # what nodes call themselves is text
    assert " on" + "click" not in text


def test_the_page_reads_only_what_the_status_has(tmp_path: Path) -> None:
    async def fields() -> set[str]:
        async with watched(tmp_path) as it:
            return set(json.loads((await it.get("/status")).body))

    read = set(re.findall(r"\bs\.([a-z_]+)", PAGE.decode()))
    assert read <= asyncio.run(fields())


async def test_a_page_that_fails_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched(tmp_path) as it:
        with monkeypatch.context() as patched:
            patched.setattr(it.node.service, "status", None)
            with pytest.raises(TypeError):  # the server makes 500 of it
                await it.get("/status")
        text = (await it.get("/metrics")).body.decode()
    assert 'logboom_http_requests_total{path="/status",status="500"} 1.0' in text
