"""How long a follower bears a leader's silence: as configured while signs of life come as they should, else longer.

Where processors are scarce a leader that is well may be silent for longer than ``election_min_ms``, and to replace it
helps nobody. So a follower measures the longest silence of late, as adaptive failure detectors do (Bertier, Marin and
Sens, 2002), and stretches its timeouts to twice that, up to ``election_patience_ms``. Safety does not depend on it.
"""

from __future__ import annotations

from typing import Final

from logboom.settings import RaftSettings

MARGIN: Final = 2.0
"""So many times the longest silence of late."""
HALF_LIFE_S: Final = 5.0
"""What was long ago counts for less."""


class Patience:
    """One node's, with whoever leads."""

    def __init__(self, settings: RaftSettings) -> None:
        self._least_s = settings.election_min_ms / 1000
        self._most = max(1.0, settings.election_patience_ms / settings.election_max_ms)
        self._longest_s = 0.0
        self._counts_s = self._most * self._least_s / MARGIN
        """What was longer is borne no longer, and is not to be remembered longer: a machine that slept for an hour."""
        self.stretch = 1.0
        """How many times longer than configured."""

    def heard(self, silence_s: float) -> None:
        """The leader of before, after so long."""
        faded = self._longest_s * 0.5 ** (silence_s / HALF_LIFE_S)
        self._longest_s = min(max(silence_s, faded), self._counts_s)
        self.stretch = min(max(1.0, MARGIN * self._longest_s / self._least_s), self._most)
