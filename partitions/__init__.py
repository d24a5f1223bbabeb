"""Partition logs, state machines and the workers that apply one to the other. See DESIGN.md."""
