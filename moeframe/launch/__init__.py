"""Start local processes, or join those that torchrun or Slurm started."""
