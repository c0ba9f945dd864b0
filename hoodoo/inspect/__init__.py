"""Inspect a table: its instants, its rejected writes and its contention."""
