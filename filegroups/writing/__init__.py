"""Writes of rows: from the batch that comes in to the commit."""
