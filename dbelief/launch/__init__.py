"""Process launch: a complete cluster on this machine, one supervised child process, a Slurm allocation."""
