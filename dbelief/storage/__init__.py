"""Stores of objects: a run's files at a URL, such as s3://BUCKET/runs, in place of a folder that processes share."""
