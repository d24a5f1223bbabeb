"""Logboom and etcd side by side on one machine: ``python -m bench``. See DESIGN.md."""
