"""What a node counts, under the names that the specification gives it."""
