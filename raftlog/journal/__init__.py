"""The parent log on the disk, and the one sync that it shares with the partitions."""
