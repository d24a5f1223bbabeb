"""Between two nodes: one connection, Raft and payload in one order."""
