"""All targets, by name."""

from __future__ import annotations

from typing import Final

from chaos.fuzz import backups, batches, files, frames, requests, state
from chaos.fuzz.target import Target

TARGETS: Final[dict[str, Target]] = {
    target.name: target for module in (frames, requests, batches, files, state, backups) for target in module.TARGETS
}
