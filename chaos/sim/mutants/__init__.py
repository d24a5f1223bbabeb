"""Bugs put in on purpose, one at a time: the simulator must notice every one of them. See chaos/DESIGN.md."""
