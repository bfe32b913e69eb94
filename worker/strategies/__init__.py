"""How a replica trains: one module for each strategy, and the factory that a job's name selects from."""
