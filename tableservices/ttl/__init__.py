"""Partition TTL: partitions that nobody wrote for some days are deleted as wholes."""
