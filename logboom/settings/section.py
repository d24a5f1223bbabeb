"""What every section is."""

from __future__ import annotations

import msgspec


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the configuration: typed, frozen, and nothing in it that is not known."""
