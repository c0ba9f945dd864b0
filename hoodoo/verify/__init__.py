"""Check a whole table: its timeline, commit log, files and records."""
