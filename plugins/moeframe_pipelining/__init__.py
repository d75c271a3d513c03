"""Pipeline schedules on torch.distributed.pipelining."""
