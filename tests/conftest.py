"""For all tests."""

from __future__ import annotations

import gc
import signal
from typing import Any

import hypothesis
import pytest

# How long an example takes, or is looked for, says how busy the machine is; tests that hang have pytest's own time-out.
hypothesis.settings.register_profile("logboom", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("logboom")


def pytest_configure() -> None:
    """Begun in the background by a script, tests ignore Ctrl-C, as would all programs that are to end by it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Modules, and the tests themselves, are there to stay: whoever looks for garbage looks past them, as many do."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "loadscope":
        return None
    from tests.spreading import FromBothEnds

    return FromBothEnds(config, log)
