"""The real world behind the ports: disk, network, threads, time, log lines."""
