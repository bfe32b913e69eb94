"""`python -m dbelief`: the same as the `dbelief` command."""

from dbelief.cli.main import main

main()
