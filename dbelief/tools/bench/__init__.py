"""Benchmarks for the user's machine: `dbelief bench`."""
