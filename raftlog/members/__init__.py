"""Who takes part: members that come, go, lead, or have forgotten."""
