"""Benchmarks of whole programs and of their parts, in a folder for each subject; `harness/` is what they share.

Each script runs from the checkout as a module, such as `python -m benchmarks.wire.limits`, and describes itself and its
options with --help. Tables and progress go to standard error, and one line of JSON to standard output.
"""
