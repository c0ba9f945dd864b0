"""What happened, when, and where the records lie: the timeline of a Hudi table and its paths."""
