"""The local committer: one process of a host publishes the writes of the others (GRP-4)."""
