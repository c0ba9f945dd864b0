"""Reads of a table: snapshots, time travel, incremental reads, CDC reads."""
