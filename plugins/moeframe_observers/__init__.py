"""Observers: `tensorboard` writes what happens in a run as TensorBoard files."""
