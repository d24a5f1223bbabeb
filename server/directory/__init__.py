"""A data directory: whose it is, what its start finds, and what is opened in it."""
