"""See chaos/DESIGN.md."""
