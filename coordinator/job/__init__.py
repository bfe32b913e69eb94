"""The state machine of a job: its phases, its timeouts, its shutdown, and what of it is persisted."""
