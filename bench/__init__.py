"""logboom and its peers side by side on one machine: ``python -m bench``. See DESIGN.md."""
