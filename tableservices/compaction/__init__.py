"""Compaction: the logs of a file slice merged into its next base file, beside the writers."""
