"""The committer: one process of a host commits the writes of its other processes (GRP-4)."""
