"""docs/configuration.md, from ``logboom.settings``: ``python -m logboom.config_reference > docs/configuration.md``."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import sys
from enum import Enum
from itertools import chain
from typing import Any

import msgspec

from logboom import settings
from logboom.types import GIB, KIB, MIB

HEAD = """\
# Configuration

Written by `python -m logboom.config_reference` from `logboom/settings/`; a test keeps it current.

Values come from, later ones winning: the defaults below, the TOML file of `logboom node --config FILE`, environment
variables `LOGBOOM_<SECTION>__<KEY>`, command line flags. Unknown keys, and values that contradict each other, stop
the start with the path of the key. `logboom node --check` only checks. Units are in the names (`_ms`, `_bytes`).

A node needs `cluster.members`, `node.id` and `node.data_dir`; the rest has defaults that suit a laptop:

```toml
[cluster]
partitions = 8
members = [
  { id = "n1", peer_address = "10.0.0.1:7801", client_address = "10.0.0.1:7701" },
  { id = "n2", peer_address = "10.0.0.2:7801", client_address = "10.0.0.2:7701" },
  { id = "n3", peer_address = "10.0.0.3:7801", client_address = "10.0.0.3:7701" },
]

[node]
id = "n1"
data_dir = "/var/lib/logboom"

[tls]
directory = "/etc/logboom/tls"
```

In the environment, members are `id=peer_host:port@client_host:port`, separated by commas:
`LOGBOOM_CLUSTER__MEMBERS="n1=10.0.0.1:7801@10.0.0.1:7701,n2=..."`.
"""

OF_ONE = "`state_machine`, `mode`, `ack` and `linearizable` of one partition.\n"
CHECKS = """\
## Checked together

* `raft.election_min_ms` is over 3 x `raft.heartbeat_ms`, `raft.election_max_ms` over `raft.election_min_ms`,
  `raft.fallback_ms` over `raft.heartbeat_ms`.
* `log.batch_bytes_max` leaves 64 KiB below `net.peer_frame_bytes` and `log.segment_bytes`.
* `admission.node_bytes` holds at least one request (`net.client_frame_bytes`).
* `net.peer_send_buffer_bytes` holds one frame (`net.peer_frame_bytes`), `net.client_send_buffer_bytes` one batch, or
  `reads.window_bytes`, and 64 KiB; half of `raft.message_bytes_max` and `raft.entry_bytes_max` leave 256 KiB below
  `net.peer_frame_bytes`. What is larger than the other side takes would be cut, and sent again, for ever: to raise
  `log.batch_bytes_max` raise these on all nodes first.
* `log.batch_bytes_max` is 8 KiB to 64 MiB less 64 KiB. At least: `raft.heartbeat_ms` 5, `net.client_frame_bytes`
  16 KiB, `net.unauthenticated_frame_bytes` 4 KiB, `apply.kv_map_bytes` 1 MiB, `snapshot.bytes_per_s` 64 KiB,
  `reads.hold_ms` 1, `net.peer_connections_max` 64, `net.handshake_ms` 200 and `net.frame_ms` 1000. At most:
  `raft.journal_segment_bytes`, frames and send buffers 1 GiB, `http.connections_max` 65536, `apply.linger_ms` a
  minute, and below `lag.slow_ms` and
  `lag.stalled_ms`.
* `net.peer_frame_bytes` has room for a piece of a snapshot: 1 MiB and 64 KiB at least.
* `reads.scans_max` and `reads.views_max` are 256 at most together; `barrier.waiters_reserved` is below
  `barrier.waiters_max`; `snapshot.keep` is 2 at least.
* `admission.fair_share_percent`, `lag.throttle_percent` and `lag.node_percent` are 1 to 100, `trace.sample` is 0 to 1
  and, above 0, needs `trace.file` or `trace.endpoint`. No number is negative, and a 0 that would mean nothing is
  refused. In the environment `admission.signals` is a list with commas.
* `cluster.id` has 1 to 255 bytes.
* `access.file` needs `tls.directory`, and in there a `client-ca.pem` none of which is in `ca.pem`, nor has a name
  that is there, nor was signed by what is, nor has signed it.
* Member ids are unique, have 64 characters at most, and `node.id` is one of them; addresses are `host:port`;
  `cluster.partitions` is 1 to 100000, and `cluster.overrides` name partitions below that.
* Everything in `[cluster]` but the members is equal on all nodes; they compare it when they connect.

## Other environment variables

| variable | meaning |
| --- | --- |
| `LOGBOOM_ENDPOINTS` | where the command line finds the cluster: `host:port,host:port,...` |
| `LOGBOOM_TLS_DIR` | its certificates: `ca.pem`, `client.pem`, `client.key` |
| `LOGBOOM_TOKEN` | sent to the node when connecting (reserved: no node looks at it; use certificates) |
| `LOGBOOM_IMAGE`, `LOGBOOM_DEMO_IMAGE` | other images for `docker-compose.yml` |

Passed over is what Kubernetes says of services whose names begin with `logboom`: `LOGBOOM_SERVICE_HOST`,
`LOGBOOM_PORT_7701_TCP`, ….
"""


def render() -> str:
    """The whole page."""
    docs = _docs()
    parts = [HEAD]
    for section in msgspec.structs.fields(settings.Settings):
        kind = section.type
        parts.append(f"## [{section.name}]\n\n{_line(inspect.getdoc(kind) or '')}\n")
        parts.append("| key | default | meaning |\n| --- | --- | --- |")
        for field in msgspec.structs.fields(kind):
            meaning = docs.get((kind.__name__, field.name), "")
            parts.append(f"| `{field.name}` | {_default(field)} | {_line(meaning)} |")
        parts.append("")
    parts += ["### [[cluster.members]]\n", "| key | meaning |\n| --- | --- |"]
    parts += [
        f"| `{field.name}` | {_line(docs.get(('Member', field.name), 'as in `node.id`'))} |"
        for field in msgspec.structs.fields(settings.Member)
    ]
    parts += [
        "",
        '### [cluster.overrides."ID"]\n',
        OF_ONE,
        CHECKS,
    ]
    return "\n".join(parts)


def _docs() -> dict[tuple[str, str], str]:
    """(class, attribute) to the string below it."""
    found = {}
    modules = [
        importlib.import_module(each.name) for each in pkgutil.iter_modules(settings.__path__, "logboom.settings.")
    ]
    for node in chain.from_iterable(ast.parse(inspect.getsource(module)).body for module in modules):
        if not isinstance(node, ast.ClassDef):
            continue
        for above, below in zip(node.body, node.body[1:], strict=False):
            if (
                isinstance(above, ast.AnnAssign)
                and isinstance(above.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
            ):
                found[node.name, above.target.id] = str(below.value.value)
    return found


def _line(text: str) -> str:
    return " ".join(text.replace("``", "`").split()).replace("|", "\\|")


def _default(field: msgspec.structs.FieldInfo) -> str:
    value: Any = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    if isinstance(value, Enum):
        value = value.value
    if value in ("", (), {}):
        return "empty"
    if (isinstance(value, int) and field.name.endswith("bytes")) or "_bytes" in field.name:
        for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
            if value and value % unit == 0:
                return f"`{value}` ({value // unit} {name})"
    return f"`{value}`"


if __name__ == "__main__":
    sys.stdout.write(render())
