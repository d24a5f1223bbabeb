"""How cost grows: with partitions, nodes, clients, command size, batch size, log length. See __main__.py."""
