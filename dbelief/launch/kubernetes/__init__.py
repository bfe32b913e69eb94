"""A job on Kubernetes: its objects of each kind from one description, and `--on kubernetes`."""
