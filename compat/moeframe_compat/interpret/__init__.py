"""A small, safe interpreter: it runs compatibility shims on trial values without importing or executing the package."""
