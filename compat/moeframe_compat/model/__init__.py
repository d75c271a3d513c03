"""The snapshot model: what a release offers, as plain data."""
