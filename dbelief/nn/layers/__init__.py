"""Layers of networks: a formula forward, a formula backward."""
