"""Reads of a table: snapshots, time travel, ranges of commits, change data."""
