"""A member's side of a job: session, client, evaluation, schedules, elastic weights."""
