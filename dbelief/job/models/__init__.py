"""The `model` section of a job file."""
