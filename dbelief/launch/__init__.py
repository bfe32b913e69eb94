"""Starting processes: a whole cluster on this machine, one supervised child, a Slurm allocation."""
