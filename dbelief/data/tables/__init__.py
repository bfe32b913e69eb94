"""Columns of tables as inputs: dates, missing values, categories, and what the training rows say of them."""
