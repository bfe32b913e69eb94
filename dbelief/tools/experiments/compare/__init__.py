"""Comparison of strategies: the same model, data and seeds; time and samples to a fixed test accuracy."""
