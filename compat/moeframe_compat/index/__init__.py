"""Meaning for a snapshot's texts: which object a name is, what a class inherits, what is public, what a value is."""
