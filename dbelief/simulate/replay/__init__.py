"""A job that one process trains in the order of a delays file, with the programs' own code."""
