"""Connections of clients: which frame becomes which call."""
