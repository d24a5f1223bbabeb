"""One partition: applying what is committed, once."""
