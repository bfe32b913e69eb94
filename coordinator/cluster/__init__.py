"""The shards of a job: initialization, placement, replication, recovery, resharding; the requested replica count."""
