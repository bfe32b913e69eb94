"""Training strategies of a replica: one module for each, and the factory that selects by the job's strategy."""
