"""A job on a Slurm cluster: a launcher on the allocation's first node, and a step for each member (`--on slurm`)."""
