"""The job file as a document: YAML, the base of its sections, paths, and what an error message says of a field."""
