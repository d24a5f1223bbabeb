"""One partition: its append-only log."""
