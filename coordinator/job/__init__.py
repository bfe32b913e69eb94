"""The state machine of a job: its phases, timeouts and shutdown, and its persisted state."""
