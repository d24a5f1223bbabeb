"""What clients read: keys, ranges, views, logs."""
