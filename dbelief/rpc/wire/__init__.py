"""What messages look like: bulk messages, encoded payloads, conversions."""
