"""Readers of data files into memory, one module for each format."""
