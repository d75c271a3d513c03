"""Compute on Transformer Engine: linears, RMSNorm and grouped experts, in bfloat16 or in blockwise FP8."""
