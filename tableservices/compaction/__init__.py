"""Compaction: merge the log files of a file slice into its next base file."""
