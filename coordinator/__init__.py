"""A job: its members, data leases, evaluations, snapshot sets and end. Never holds a parameter-sized vector."""
