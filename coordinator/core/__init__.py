"""Plain data types of a job: members, progress, messages and effects. Below every other folder."""
