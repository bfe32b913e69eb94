"""The command line: `dbelief` and its commands, except those of the roles."""
