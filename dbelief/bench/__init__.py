"""Benchmarks that a machine's owner may want to run: `dbelief bench`."""
