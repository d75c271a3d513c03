"""From a recipe to a trained model. Read `assemble.py` first."""
