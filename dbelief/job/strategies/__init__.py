"""The `strategy` section of a job file, with the rules."""
