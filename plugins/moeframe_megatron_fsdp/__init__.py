"""`megatron_fsdp`: ZeRO-1, 2 and 3 by the PyPI package megatron-fsdp, with expert parallelism. CUDA only."""
