"""Formats that are read unit by unit."""
