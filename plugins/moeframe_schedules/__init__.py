"""Schedules: `accumulate`, every micro-batch through the whole model, one after the other."""
