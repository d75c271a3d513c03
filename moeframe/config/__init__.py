"""Recipes: load, check, explain."""
