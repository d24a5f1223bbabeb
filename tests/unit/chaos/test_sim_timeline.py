"""What the simulated processes log: whatever somebody has caught that nobody expected fails the run."""

from __future__ import annotations

import pytest
import structlog

from chaos.sim.loop import SimLoop
from chaos.sim.timeline import Timeline
from logboom.errors import Unavailable

LOG = structlog.get_logger()


@pytest.mark.parametrize(
    ("error", "found"), [(KeyError("k"), 1), (AssertionError(), 1), (Unavailable("later"), 0), (OSError(5, "EIO"), 0)]
)
def test_what_is_caught_and_logged(error: Exception, found: int, loop: SimLoop) -> None:
    told = list[str]()
    timeline = Timeline()
    timeline.attach(loop, lambda invariant, _: told.append(invariant))
    with timeline.logging():
        try:
            raise error  # noqa: TRY301 - what is caught is the test
        except Exception as caught:
            LOG.exception("it_failed")
            LOG.warning("it_failed", exc_info=caught)
            LOG.info("it_failed", exc_info=caught)
    assert told == ["NothingUnhandled"] * 2 * found


def test_what_says_nothing_of_an_error(loop: SimLoop) -> None:
    timeline = Timeline()
    timeline.attach(loop, lambda *_: pytest.fail("nothing was wrong"))
    with timeline.logging():
        LOG.error("payload_lost", exc_info=None)
