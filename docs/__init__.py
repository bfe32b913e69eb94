"""Pages of the documentation. Installed as `dbelief.pages`, with those that `dbelief help` shows."""
