"""What the parent log says: routes, members, partitions, voids; and the state that follows."""
