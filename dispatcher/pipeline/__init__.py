"""The write flow of one node, and the view that clients have of it."""
