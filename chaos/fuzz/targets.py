"""All targets, by name."""

from __future__ import annotations

from typing import Final

from chaos.fuzz import backups, batches, files, frames, http, parent, requests, snapshots, state
from chaos.fuzz.target import Target

TARGETS: Final[dict[str, Target]] = {
    target.name: target
    for module in (frames, requests, http, batches, files, parent, state, snapshots, backups)
    for target in module.TARGETS
}
