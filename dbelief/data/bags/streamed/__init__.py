"""Samples with bags of keys that are read unit by unit."""
