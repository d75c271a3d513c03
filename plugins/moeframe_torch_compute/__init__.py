"""Compute on plain torch: linears, RMSNorm, grouped_mm experts and SDPA attention."""
