"""`python -m dbelief`: the same as the `dbelief` command."""

from dbelief.cli import main

main()
