"""What takes real nodes a while."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_for(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)
