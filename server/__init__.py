"""The composition root: real clock, disk, network and threads, and the node made of them. See DESIGN.md."""
