"""The command line: `dbelief` and its commands, without those of the roles."""
