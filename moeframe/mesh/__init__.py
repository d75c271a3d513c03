"""Parallel degrees, ranks and device meshes."""
