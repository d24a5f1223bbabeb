"""What docker-compose.yml asks a node."""

from __future__ import annotations

import re
import sys
from pathlib import Path

COMPOSE = Path(__file__).resolve().parents[3] / "docker-compose.yml"


PORT = "7902"


def program(port: int) -> list[str]:
    """What the engine runs in a node's container, for a node on this port."""
    text = COMPOSE.read_text()
    flag, code = re.findall(r"test: \[CMD, python, (-\w+), '(.*?)'\]", text, re.DOTALL)[0]
    assert f"LOGBOOM_NODE__PROBE_ADDRESS: 127.0.0.1:{PORT}\n" in text
    assert code.count(PORT) == 1
    return [sys.executable, flag, re.sub(r"\s*\n\s*", " ", code).replace(PORT, str(port))]
