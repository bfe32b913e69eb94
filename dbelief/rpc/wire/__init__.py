"""Wire format of messages: bulk messages, encoded payloads, conversions."""
