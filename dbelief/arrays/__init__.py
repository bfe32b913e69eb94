"""Arrays and operations on all their numbers: backends, compiled loops, shared memory, staging of pushes."""
