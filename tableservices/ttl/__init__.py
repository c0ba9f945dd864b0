"""Partition TTL: delete whole partitions after some days without a write."""
