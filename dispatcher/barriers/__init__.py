"""How far everything is, here and elsewhere, and who waits for it."""
