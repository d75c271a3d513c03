"""The other side: what a new release of a package breaks in the code that uses it."""
