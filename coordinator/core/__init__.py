"""The plain states of a job: its members, progress, messages and effects. Below every other folder."""
