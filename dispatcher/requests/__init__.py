"""A request: as an object and as bytes, known again, followed through its stages."""
