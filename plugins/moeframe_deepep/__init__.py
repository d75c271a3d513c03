"""Dispatchers on the kernels of the library DeepEP: one row per (token, rank), and the fused permute of HybridEP."""
