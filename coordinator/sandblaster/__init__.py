"""Batch methods: L-BFGS without local vectors, line search, passes over the data, backup tasks."""
