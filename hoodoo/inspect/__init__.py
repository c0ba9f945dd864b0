"""What a person asks about a table: its instants, rejected writes, and contention."""
