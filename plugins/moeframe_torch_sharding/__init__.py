"""First-party plugin."""
