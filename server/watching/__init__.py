"""What only looks at a node, and tells operators."""
