"""Types shared by all programs: layout, placement, pushes, leases, vector programs, ranks."""
