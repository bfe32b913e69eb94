"""What all programs agree on: layout, placement, pushes, leases, vector programs, ranks."""
