"""Cleaning: delete the data files that no reader within the retention and no writer needs."""
