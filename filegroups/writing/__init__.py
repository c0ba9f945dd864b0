"""Writes of rows, from the incoming batch to the commit."""
