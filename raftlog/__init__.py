"""The parent log: Raft over routing entries. See DESIGN.md."""
