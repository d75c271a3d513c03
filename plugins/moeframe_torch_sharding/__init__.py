"""Sharding strategies on torch: `replicate` (whole parameters) and `fsdp2` (torch's fully_shard)."""
