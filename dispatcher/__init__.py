"""The write flow of one node and what clients see of it. See DESIGN.md."""
