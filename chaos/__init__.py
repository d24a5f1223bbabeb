"""Fault runs on real processes, and the checkers of what they record. See DESIGN.md."""
