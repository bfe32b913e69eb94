"""Arrays cut over the ranks of a replica, and what they exchange."""
