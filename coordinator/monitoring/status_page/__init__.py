"""The status page: the job's status in a browser. It is read-only and loads nothing from other servers."""
