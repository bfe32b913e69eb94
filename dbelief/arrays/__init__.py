"""Arrays and what touches every number of them: backends, compiled loops, shared memory, staging of pushes."""
