"""Whole nodes in one process: the production code on a simulated clock, network and disk."""
