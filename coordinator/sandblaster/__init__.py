"""Batch methods: L-BFGS without a vector of its own, line search, passes over the data, backup tasks."""
